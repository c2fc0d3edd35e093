// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "apps/diffattn/generate/continuation.h"
#include "apps/diffattn/generate/conversation.h"

namespace diffattn::app {

/// Reads standard input line by line until it ends. With a conversation, each line is a turn of the
/// user, and `/reset` forgets the turns before it. Without one, each line is a prompt that is
/// continued by itself. Ctrl-C ends a reply or a continuation. Returns the exit code.
int continue_interactively(Generator& generator, std::optional<Conversation> conversation);

}  // namespace diffattn::app
