// SPDX-License-Identifier: Apache-2.0
//
// The schemas of torch.ops.diffattn.*, and nothing else.

#include <string>

#include "ops/dispatch/entry.h"

namespace {

const std::string kQueriesAndKeys = "Tensor q1, Tensor q2, Tensor k1, Tensor k2";

const std::string kProblem =
    "float? scale=None, float? scale2=None, bool causal=False, int? window=None, "
    "Tensor? mask=None, Tensor? key_starts=None, Tensor? key_lengths=None, "
    "Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None";

// Newer arguments stand last, so that calls with positions keep their meaning.
const std::string kWindow = "int window_left=-1, int window_right=-1";

const std::string kEpilogue = "Tensor? norm_weight=None, float? norm_eps=None, float out_scale=1.0";

}  // namespace

TORCH_LIBRARY(diffattn, m) {
  const auto define = [&m](const std::string& schema) { m.def(schema.c_str()); };

  define("attention(" + kQueriesAndKeys + ", Tensor v, Tensor lam, *, " + kProblem + ", " +
         kEpilogue + ", " + kWindow + ") -> Tensor");

  define("attention_forward(" + kQueriesAndKeys + ", Tensor v, Tensor lam, *, " + kProblem + ", " +
         kEpilogue + ", bool save_outputs=False, " + kWindow +
         ", bool save_o=False) -> "
         "(Tensor out, Tensor lse1, Tensor lse2, Tensor o, Tensor o2)");

  define("attention_recompute(" + kQueriesAndKeys +
         ", Tensor v, Tensor lam, Tensor lse1, Tensor lse2, *, " + kProblem + ", " + kEpilogue +
         ", " + kWindow + ") -> (Tensor out, Tensor o)");

  define("attention_backward(Tensor dout, " + kQueriesAndKeys +
         ", Tensor v, Tensor lam, Tensor lse1, Tensor lse2, Tensor o, Tensor o2, bool[8] wanted, "
         "*, " +
         kProblem + ", " + kEpilogue + ", " + kWindow +
         ") -> (Tensor dq1, Tensor dq2, Tensor dk1, Tensor dk2, Tensor dv, Tensor dlam, "
         "Tensor dnorm_weight, Tensor dmask)");

  define("decode(" + kQueriesAndKeys +
         ", Tensor v, Tensor lam, *, float? scale=None, float? scale2=None, int? window=None, "
         "Tensor? mask=None, Tensor? key_starts=None, Tensor? key_lengths=None, "
         "Tensor? block_table=None, " +
         kEpilogue + ", " + kWindow + ") -> Tensor");

  define("attention_stats(" + kQueriesAndKeys + ", Tensor lam, *, " + kProblem +
         ", float sparse_threshold=0.001, " + kWindow + ") -> Tensor");

  define("attention_stats_backward(Tensor dstats, " + kQueriesAndKeys +
         ", Tensor lam, bool[6] wanted, *, " + kProblem + ", " + kWindow +
         ") -> (Tensor dq1, Tensor dq2, Tensor dk1, Tensor dk2, Tensor dlam, Tensor dmask)");

  define("attention_map(" + kQueriesAndKeys +
         ", Tensor lam, int row_begin, int row_end, int col_begin, int col_end, int rows, "
         "int cols, *, " +
         kProblem + ", " + kWindow + ") -> Tensor");
}
