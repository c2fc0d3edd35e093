// SPDX-License-Identifier: Apache-2.0
//
// Every wrong call throws an error that names the argument, what was expected and what came.

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "diffattn/kernels/error.h"
#include "diffattn/ops.h"

namespace diffattn::testing::errors_test {
namespace {

using torch::Tensor;

/// A valid call, of which each test changes one thing: B 2, M 3, N 5, H 4, Hkv 2, D 8, Dv 16.
struct Call {
  Tensor q1 = torch::randn({2, 3, 4, 8}), q2 = torch::randn({2, 3, 4, 8});
  Tensor k1 = torch::randn({2, 5, 2, 8}), k2 = torch::randn({2, 5, 2, 8});
  Tensor v = torch::randn({2, 5, 2, 16});
  Tensor lambda = torch::tensor(0.3f);
  AttentionOptions options;

  Tensor run() const { return attention(q1, q2, k1, k2, v, lambda, options); }
};

struct Wrong {
  const char* name;
  std::function<void(Call&)> change;
  std::vector<const char*> fragments;  // the message must contain all of them
};

void make_packed(Call& c, std::vector<int> q, std::vector<int> k) {
  for (Tensor* t : {&c.q1, &c.q2, &c.k1, &c.k2, &c.v}) *t = t->flatten(0, 1);
  c.options.cu_seqlens_q(torch::tensor(q)).cu_seqlens_k(torch::tensor(k));
}

const std::vector<Wrong>& wrong_calls() {
  static const auto ints = [](std::vector<int> values) { return torch::tensor(values); };
  static const std::vector<Wrong> list{
      {"rank", [](Call& c) { c.q1 = c.q1[0]; }, {"'q1'", "4 axes", "3 axes", "[3, 4, 8]"}},
      {"undefined q1", [](Call& c) { c.q1 = Tensor(); }, {"'q1'", "a tensor", "undefined"}},
      {"undefined v", [](Call& c) { c.v = Tensor(); }, {"'v'", "a tensor", "undefined"}},
      {"undefined lambda", [](Call& c) { c.lambda = Tensor(); }, {"'lambda'", "undefined"}},
      {"rank of v", [](Call& c) { c.v = c.v[0]; }, {"'v'", "4 axes", "3 axes"}},
      {"q2 shape",
       [](Call& c) { c.q2 = c.q2.slice(1, 0, 2); },
       {"'q2'", "[2, 3, 4, 8]", "[2, 2, 4, 8]"}},
      {"q2 heads that do not divide q1's",
       [](Call& c) { c.q2 = c.q2.slice(2, 0, 3); },
       {"'q2'", "divides q1's 4 and is a multiple of k1's 2", "3 heads"}},
      {"q2 heads that share values of two kv heads",
       [](Call& c) { c.q2 = c.q2.slice(2, 0, 1); },
       {"'q2'", "divides q1's 4 and is a multiple of k1's 2", "1 heads"}},
      {"more heads of q2 than of q1",
       [](Call& c) {
         c.q2 = torch::randn({2, 3, 8, 8});
       },
       {"'q2'", "divides q1's 4", "8 heads"}},
      {"k2 shape",
       [](Call& c) { c.k2 = c.k2.slice(1, 0, 2); },
       {"'k2'", "[2, 5, 2, 8]", "[2, 2, 2, 8]"}},
      {"k batch",
       [](Call& c) { c.k1 = c.k2 = c.k1.slice(0, 0, 1); },
       {"'k1'", "batch 2", "[1, 5, 2, 8]"}},
      {"k width",
       [](Call& c) {
         c.k1 = c.k2 = torch::randn({2, 5, 2, 7});
       },
       {"'k1'", "width 8", "[2, 5, 2, 7]"}},
      {"v length",
       [](Call& c) { c.v = c.v.slice(1, 0, 4); },
       {"'v'", "[2, 5, 2, 8]", "[2, 4, 2, 16]"}},
      {"heads",
       [](Call& c) {
         c.k1 = c.k2 = torch::randn({2, 5, 3, 8});
         c.v = torch::randn({2, 5, 3, 16});
       },
       {"'q1'", "multiple of k1's 3", "got 4"}},
      {"width 0",
       [](Call& c) {
         c.q1 = c.q2 = torch::randn({2, 3, 4, 0});
         c.k1 = c.k2 = torch::randn({2, 5, 2, 0});
       },
       {"'q1'", "at least 1", "got 0"}},
      {"integer q1",
       [](Call& c) {
         c.q1 = torch::ones({2, 3, 4, 8}, torch::kInt);
       },
       {"'q1'", "float32", "Int"}},
      {"complex v",
       [](Call& c) {
         c.v = torch::randn({2, 5, 2, 16}, torch::kComplexFloat);
       },
       {"'v'", "float32", "ComplexFloat"}},
      {"mixed types",
       [](Call& c) { c.k1 = c.k1.to(torch::kBFloat16); },
       {"'k1'", "Float, like q1", "BFloat16"}},
      {"device", [](Call& c) { c.v = c.v.to(torch::kMeta); }, {"'v'", "cpu", "meta"}},
      {"lambda device",
       [](Call& c) { c.lambda = c.lambda.to(torch::kMeta); },
       {"'lambda'", "cpu", "meta"}},
      {"last stride",
       [](Call& c) {
         c.q1 = torch::randn({2, 3, 8, 4}).transpose(2, 3);
       },
       {"'q1'", "last stride of 1", "[96, 32, 1, 4]"}},
      {"lambda shape",
       [](Call& c) { c.lambda = torch::rand({3}); },
       {"'lambda'", "[H] = [4]", "[2, 3, 4]", "shape [3]"}},
      {"lambda rows",
       [](Call& c) {
         c.lambda = torch::rand({2, 4, 3});
       },
       {"'lambda'", "[2, 3, 4]", "[2, 4, 3]"}},
      {"lambda rank",
       [](Call& c) {
         c.lambda = torch::rand({2, 3});
       },
       {"'lambda'", "[2, 3, 4]", "shape [2, 3]"}},
      {"lambda integer",
       [](Call& c) { c.lambda = torch::ones({4}, torch::kLong); },
       {"'lambda'", "float32", "Long"}},
      {"window", [](Call& c) { c.options.window(-1); }, {"'window'", "at least 0", "-1"}},
      {"window_left",
       [](Call& c) { c.options.window(-2, 3); },
       {"'window_left'", "-1 for no bound", "-2"}},
      {"window_right",
       [](Call& c) { c.options.window(3, -7); },
       {"'window_right'", "-1 for no bound", "-7"}},
      {"scale NaN", [](Call& c) { c.options.scale(NAN); }, {"'scale'", "finite", "nan"}},
      {"scale inf", [](Call& c) { c.options.scale(INFINITY); }, {"'scale'", "finite", "inf"}},
      {"scale2 NaN", [](Call& c) { c.options.scale2(NAN); }, {"'scale2'", "finite", "nan"}},
      {"out_scale", [](Call& c) { c.options.out_scale(NAN); }, {"'out_scale'", "finite", "nan"}},
      {"norm_eps", [](Call& c) { c.options.norm_eps(-1e-5); }, {"'norm_eps'", "not negative"}},
      {"norm_weight alone",
       [](Call& c) { c.options.norm_weight(torch::ones({16})); },
       {"'norm_weight'", "norm_eps"}},
      {"norm_weight shape",
       [](Call& c) { c.options.norm_eps(1e-5).norm_weight(torch::ones({8})); },
       {"'norm_weight'", "[16]", "[8]"}},
      {"norm_weight rank",
       [](Call& c) { c.options.norm_eps(1e-5).norm_weight(torch::ones({})); },
       {"'norm_weight'", "[16]", "shape []"}},
      {"mask shape",
       [](Call& c) {
         c.options.mask(torch::ones({3, 4}, torch::kBool));
       },
       {"'mask'", "[2, 4, 3, 5]", "[3, 4]"}},
      {"mask rank",
       [](Call& c) {
         c.options.mask(torch::ones({1, 1, 1, 3, 5}, torch::kBool));
       },
       {"'mask'", "broadcasts"}},
      {"mask integer",
       [](Call& c) {
         c.options.mask(torch::ones({3, 5}, torch::kInt));
       },
       {"'mask'", "bool", "Int"}},
      {"key_lengths beyond N",
       [](Call& c) {
         c.options.key_lengths(ints({5, 6}));
       },
       {"'key_lengths'", "N = 5", "6 at index 1"}},
      {"key_lengths negative",
       [](Call& c) {
         c.options.key_lengths(ints({-1, 5}));
       },
       {"'key_lengths'", "-1 at index 0"}},
      {"key_lengths huge",
       [](Call& c) {
         c.options.key_lengths(torch::tensor({int64_t{1} << 32, int64_t{5}}));
       },
       {"'key_lengths'", "2^31", "4294967296 at index 0"}},
      {"key_lengths shape",
       [](Call& c) { c.options.key_lengths(ints({5})); },
       {"'key_lengths'", "[2]", "[1]"}},
      {"key_lengths type",
       [](Call& c) { c.options.key_lengths(torch::ones({2})); },
       {"'key_lengths'", "int32 or int64", "Float"}},
      {"key_starts beyond N",
       [](Call& c) {
         c.options.key_starts(ints({0, 9}));
       },
       {"'key_starts'", "N = 5", "9 at index 1"}},
      {"cu_seqlens decreasing",
       [](Call& c) {
         make_packed(c, {0, 4, 2, 6}, {0, 3, 6, 10});
       },
       {"'cu_seqlens_q'", "never decrease", "2 at index 2 after 4"}},
      {"cu_seqlens first",
       [](Call& c) {
         make_packed(c, {1, 6}, {0, 10});
       },
       {"'cu_seqlens_q'", "0 at index 0", "1 at index 0"}},
      {"cu_seqlens last",
       [](Call& c) {
         make_packed(c, {0, 6}, {0, 9});
       },
       {"'cu_seqlens_k'", "10", "got 9"}},
      {"cu_seqlens count",
       [](Call& c) {
         make_packed(c, {0, 6}, {0, 5, 10});
       },
       {"'cu_seqlens_k'", "[2]", "[3]"}},
      {"cu_seqlens empty",
       [](Call& c) {
         make_packed(c, {}, {});
         c.options.cu_seqlens_q(torch::empty({0}, torch::kInt));
       },
       {"'cu_seqlens_q'", "at least one offset"}},
      {"only one cu_seqlens",
       [](Call& c) {
         c.options.cu_seqlens_q(ints({0, 6}));
       },
       {"'cu_seqlens_k'", "both or neither"}},
      {"packed rank",
       [](Call& c) {
         c.options.cu_seqlens_q(ints({0, 6})).cu_seqlens_k(ints({0, 10}));
       },
       {"'q1'", "3 axes", "4 axes"}},
      {"packed mask",
       [](Call& c) {
         make_packed(c, {0, 6}, {0, 10});
         c.options.mask(torch::ones({6, 9}, torch::kBool));
       },
       {"'mask'", "column axis", "10", "got 9"}},
  };
  return list;
}

TEST(Errors, NameArgumentExpectedAndGot) {
  for (const Wrong& wrong : wrong_calls()) {
    Call call;
    wrong.change(call);
    try {
      call.run();
      ADD_FAILURE() << wrong.name << ": no error";
    } catch (const Error& error) {
      for (const char* fragment : wrong.fragments) {
        EXPECT_NE(std::string(error.what()).find(fragment), std::string::npos)
            << wrong.name << ": '" << fragment << "' is not in: " << error.what();
      }
    }
  }
}

TEST(Errors, UnchangedCallWorks) {
  EXPECT_EQ(Call().run().sizes(), torch::IntArrayRef({2, 3, 4, 16}));
}

TEST(Errors, EveryFloatingTypeWorks) {
  const Call call;
  const Tensor want = call.run();
  for (const auto type : {torch::kFloat64, torch::kBFloat16, torch::kFloat16}) {
    Call other = call;
    for (Tensor* t : {&other.q1, &other.q2, &other.k1, &other.k2, &other.v}) *t = t->to(type);
    const Tensor out = other.run();
    EXPECT_EQ(out.scalar_type(), type);
    EXPECT_LT((out.to(torch::kFloat32) - want).abs().max().item<float>(), 0.05) << type;
  }
}

TEST(Errors, TheStrideOfAnAxisOfSizeOneDoesNotMatter) {
  Call call;
  for (Tensor* t : {&call.q1, &call.q2, &call.k1, &call.k2}) *t = t->slice(3, 0, 1).contiguous();
  const Tensor want = call.run();
  call.q1 = call.q1.as_strided(call.q1.sizes(), {12, 4, 1, 5});
  EXPECT_TRUE(call.run().equal(want));
}

TEST(Errors, NoPackedSequenceIsAnEmptyResult) {
  Call call;
  for (Tensor* t : {&call.q1, &call.q2, &call.k1, &call.k2, &call.v}) *t = t->slice(0, 0, 0);
  make_packed(call, {0}, {0});
  EXPECT_EQ(call.run().sizes(), torch::IntArrayRef({0, 4, 16}));
}

TEST(Errors, MapRanges) {
  const Call c;
  const auto map = [&](const MapOptions& options) {
    return attention_map(c.q1, c.q2, c.k1, c.k2, c.lambda, {}, options);
  };
  EXPECT_THROW(map(MapOptions().row_end(4)), Error);
  EXPECT_THROW(map(MapOptions().col_begin(-1)), Error);
  EXPECT_THROW(map(MapOptions().rows(0)), Error);
  EXPECT_THROW(map(MapOptions().cols(6)), Error);
  EXPECT_EQ(map(MapOptions()).sizes(), torch::IntArrayRef({2, 4, 3, 3, 5}));
  // attention_map reads shapes and offsets for its defaults before the operator checks them.
  const auto one = AttentionOptions().cu_seqlens_q(torch::tensor({0, 3}));
  EXPECT_THROW(attention_map(c.q1, c.q2, c.k1, c.k2, c.lambda, one), Error);
  EXPECT_THROW(attention_map(c.q1.flatten(), c.q2, c.k1, c.k2, c.lambda), Error);
  EXPECT_THROW(attention_map(Tensor(), c.q2, c.k1, c.k2, c.lambda), Error);
}

TEST(Errors, UnknownBackend) {
  try {
    limit_backend("avx1024");
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("'avx1024'"), std::string::npos) << text;
    for (const BackendInfo& backend : backends()) {  // "avx512" too, not only "avx512_bf16"
      EXPECT_TRUE(text.find(" " + backend.name + " ") != std::string::npos ||
                  text.find(" " + backend.name + ",") != std::string::npos)
          << backend.name << " in: " << text;
    }
  }
  limit_backend("");
}

TEST(Errors, DecodeTakesNoPackedSequences) {
  Call c;
  make_packed(c, {0, 6}, {0, 10});
  EXPECT_THROW(decode(c.q1, c.q2, c.k1, c.k2, c.v, c.lambda, c.options), Error);
}

}  // namespace
}  // namespace diffattn::testing::errors_test
