// SPDX-License-Identifier: Apache-2.0
// Exists so that the precompiled torch header has a target to belong to.
