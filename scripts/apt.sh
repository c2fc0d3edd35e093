# SPDX-License-Identifier: Apache-2.0
# Shared by the setup scripts, which source it.

say() { printf 'setup: %s\n' "$*"; }

# Needs a compiler: without one, every header counts as missing.
has_header() { # header
  echo "#include <$1>" | g++ -std=c++20 -E -x c++ - >/dev/null 2>&1
}

# Prints the packages of the C++ libraries that our sources include and that are missing.
missing_libraries() {
  has_header CLI/CLI.hpp || echo libcli11-dev
  has_header nlohmann/json.hpp || echo nlohmann-json3-dev
  has_header fmt/core.h || echo libfmt-dev
  has_header toml++/toml.h || echo libtomlplusplus-dev
  has_header zlib.h || echo zlib1g-dev
  has_header microhttpd.h || echo libmicrohttpd-dev
}

# Installs packages as root or with sudo. Exits with status 2 and prints the command to type if it may
# not install, or if apt fails.
install_packages() { # package...
  local as_root=() log
  if [ "$(id -u)" -ne 0 ]; then
    if command -v sudo >/dev/null && sudo -n true 2>/dev/null; then as_root=(sudo -n); fi
  fi
  if ! command -v apt-get >/dev/null || { [ "$(id -u)" -ne 0 ] && [ ${#as_root[@]} -eq 0 ]; }; then
    say "missing: $*"
    say "these need an administrator; please run:"
    say "  sudo apt-get update && sudo apt-get install -y --no-install-recommends $*"
    exit 2
  fi
  say "installing with apt: $*"
  log=$(mktemp)
  if ! { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -qq &&
         "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
           --no-install-recommends "$@"; } >"$log" 2>&1; then
    cat "$log" >&2
    rm -f "$log"
    say "apt could not install: $*"
    exit 2
  fi
  rm -f "$log"
}
