// SPDX-License-Identifier: Apache-2.0
//
// Wrong parameters throw an Error that names the field, what was expected and what came.

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "diffattn/kernels/error.h"
#include "tests/support/run.h"

namespace diffattn::testing {
namespace {

/// A correct problem that a test then breaks.
class Validate : public ::testing::Test {
 protected:
  Validate() {
    Spec spec;
    spec.batch = 2;
    spec.heads = 4;
    spec.kv_heads = 2;
    spec.seq_q = 3;
    spec.seq_k = 5;
    spec.key_lengths = spec.key_starts = true;
    case_.emplace(spec, Dtype::kFloat32);
    problem_ = case_->problem();
  }

  std::string message(bool host_arrays = true) const {
    try {
      validate(problem_, host_arrays);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  void expect(const char* field, const std::string& expected, const std::string& got) const {
    const std::string text = message();
    EXPECT_NE(text.find("'" + std::string(field) + "'"), std::string::npos) << text;
    EXPECT_NE(text.find("expected " + expected), std::string::npos) << text;
    EXPECT_NE(text.find("got " + got), std::string::npos) << text;
  }

  void make_packed(const int32_t* q, const int32_t* k) {
    problem_.key_lengths = problem_.key_starts = nullptr;
    problem_.cu_seqlens_q = q;
    problem_.cu_seqlens_k = k;
  }

  std::optional<Case> case_;
  Problem problem_;
};

TEST_F(Validate, ACorrectProblemPasses) { EXPECT_EQ(message(), ""); }

TEST_F(Validate, Sizes) {
  struct Wrong {
    const char* name;
    int64_t Problem::*field;
    int64_t value;
    const char* expected;
  };
  for (const Wrong& wrong : {Wrong{"batch", &Problem::batch, -1, "at least 0"},
                             Wrong{"heads", &Problem::heads, -4, "at least 0"},
                             Wrong{"kv_heads", &Problem::kv_heads, -2, "at least 0"},
                             Wrong{"seq_q", &Problem::seq_q, -3, "at least 0"},
                             Wrong{"seq_k", &Problem::seq_k, -5, "at least 0"},
                             Wrong{"head_dim", &Problem::head_dim, 0, "at least 1"},
                             Wrong{"value_dim", &Problem::value_dim, -1, "at least 0"},
                             Wrong{"heads", &Problem::heads, 5, "a multiple of kv_heads = 2"}}) {
    const int64_t correct = std::exchange(problem_.*wrong.field, wrong.value);
    expect(wrong.name, wrong.expected, std::to_string(wrong.value));
    problem_.*wrong.field = correct;
  }
}

TEST_F(Validate, Windows) {
  problem_.window = {-2, 0};
  expect("window.left", "at least -1", "-2");
  problem_.window = {3, -1};
  expect("window.right", "at least 0", "-1");
  problem_.window = Window::last(0);
  EXPECT_EQ(message(), "");
}

TEST_F(Validate, HeadsWithoutKeyHeads) {
  problem_.kv_heads = 0;
  expect("heads", "a multiple of kv_heads = 0", "4");
}

TEST_F(Validate, NoiseHeads) {
  constexpr const char* kExpected = "a divisor of heads = 4 and a multiple of kv_heads = 2";
  for (const int64_t wrong : {-2, 1, 3, 8}) {
    problem_.noise_heads = wrong;
    expect("noise_heads", kExpected, std::to_string(wrong));
  }
  for (const int64_t right : {0, 2, 4}) {
    problem_.noise_heads = right;
    EXPECT_EQ(message(), "");
    const std::string on_devices = message(/*host_arrays=*/false);
    EXPECT_EQ(on_devices.empty(), right != 2) << on_devices;
  }
}

TEST_F(Validate, HeadsOfANoiseHeadShareTheMask) {
  constexpr uint8_t kVisible = 1;
  problem_.noise_heads = 2;
  problem_.mask.kind = MaskKind::kBoolean;
  problem_.mask.data = &kVisible;
  EXPECT_EQ(message(), "");
  problem_.mask.strides.head = 1;
  expect("mask", "one mask for all heads, since 2 heads share a noise head", "a mask per head");
}

TEST_F(Validate, Pointers) {
  struct Wrong {
    const char* name;
    View<const void> Problem::*field;
  };
  for (const Wrong& wrong :
       {Wrong{"q1", &Problem::q1}, Wrong{"q2", &Problem::q2}, Wrong{"k1", &Problem::k1},
        Wrong{"k2", &Problem::k2}, Wrong{"lambda", &Problem::lambda}}) {
    const View<const void> correct = std::exchange(problem_.*wrong.field, View<const void>{});
    expect(wrong.name, "a pointer", "null");
    problem_.*wrong.field = correct;
  }
  problem_.mask.kind = MaskKind::kBoolean;
  expect("mask", "a pointer", "null");
}

TEST_F(Validate, NothingToReadNeedsNoPointers) {
  problem_.q1 = problem_.q2 = problem_.k1 = problem_.k2 = problem_.lambda = {};
  problem_.batch = 0;
  EXPECT_EQ(message(), "");
}

TEST_F(Validate, Scales) {
  for (const double value : {NAN, INFINITY, -INFINITY}) {
    problem_.scale = value;
    expect("scale", "a finite number", std::to_string(value));
    problem_.scale = 1.0;
    problem_.scale2 = value;
    expect("scale2", "a finite number", std::to_string(value));
    problem_.scale2 = 1.0;
  }
}

TEST_F(Validate, KeyLengthsAndStarts) {
  const int32_t negative[] = {5, -1}, beyond[] = {6, 5};
  problem_.key_lengths = negative;
  expect("key_lengths", "0 <= key_lengths[b] <= N = 5", "-1 at index 1");
  problem_.key_lengths = beyond;
  expect("key_lengths", "0 <= key_lengths[b] <= N = 5", "6 at index 0");
  problem_.key_lengths = nullptr;
  problem_.key_starts = negative;
  expect("key_starts", "0 <= key_starts[b] <= N = 5", "-1 at index 1");
  problem_.key_starts = beyond;
  expect("key_starts", "0 <= key_starts[b] <= N = 5", "6 at index 0");
}

TEST_F(Validate, Offsets) {
  const int32_t good_q[] = {0, 3, 5}, good_k[] = {0, 5, 7};
  make_packed(good_q, good_k);
  EXPECT_EQ(message(), "");
  make_packed(good_q, nullptr);
  expect("cu_seqlens_k", "both or neither", "only cu_seqlens_q");
  make_packed(nullptr, good_k);
  expect("cu_seqlens_q", "both or neither", "only cu_seqlens_k");
  const int32_t late[] = {1, 3, 5}, falling[] = {0, 3, 2}, long_q[] = {0, 4, 5};
  make_packed(late, good_k);
  expect("cu_seqlens_q", "0 at index 0", "1 at index 0");
  make_packed(good_q, falling);
  expect("cu_seqlens_k", "offsets that never decrease", "2 at index 2 after 3");
  make_packed(long_q, good_k);
  expect("cu_seqlens_q", "sequences of at most 3", "a sequence of 4 at index 0");
  make_packed(good_q, good_k);
  const int32_t lengths[] = {5, 3};  // the second sequence has two keys
  problem_.key_lengths = lengths;
  expect("key_lengths", "0 <= key_lengths[b] <= N = 2", "3 at index 1");
}

TEST_F(Validate, DeviceArraysAreNotRead) {
  const int32_t wrong[] = {-7, -7};
  problem_.key_lengths = wrong;
  EXPECT_NE(message(true), "");
  EXPECT_EQ(message(false), "");
}

TEST_F(Validate, UnknownBackend) {
  EXPECT_EQ(choose_cpu_backend(problem_, "reference").name, std::string("reference"));
  try {
    choose_cpu_backend(problem_, "abacus");
    FAIL() << "accepted";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("'backend'"), std::string::npos) << text;
    EXPECT_NE(text.find("reference"), std::string::npos) << text;
    EXPECT_NE(text.find("'abacus'"), std::string::npos) << text;
  }
}

TEST_F(Validate, TheReferenceIsLastAndTakesEverything) {
  const Backend& last = cpu_backends().back();
  EXPECT_EQ(last.name, std::string("reference"));
  EXPECT_TRUE(last.available());
  EXPECT_TRUE(last.takes(problem_));
}

class ValidateBackend : public ::testing::TestWithParam<Target> {};

TEST_P(ValidateBackend, EveryOperationChecksItsProblem) {
  Spec spec;
  const Case c(spec, GetParam().dtype);
  const auto expect_error = [](const std::function<void()>& call) {
    try {
      call();
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("'window.left'"), std::string::npos) << error.what();
    }
  };
  const auto broken = [&](auto params) {
    static_cast<Problem&>(params) = c.problem();
    params.window = {-5, 0};
    return params;
  };
  const Backend& backend = *GetParam().backend;
  expect_error([&] { backend.forward(broken(ForwardParams{})); });
  expect_error([&] { backend.backward(broken(BackwardParams{})); });
  expect_error([&] { backend.stats(broken(StatsParams{})); });
  expect_error([&] { backend.stats_backward(broken(StatsBackwardParams{})); });
  expect_error([&] { backend.map(broken(MapParams{})); });
}

TEST_P(ValidateBackend, StatisticsAndMapsNeedOwnNoiseHeads) {
  Spec spec;
  spec.heads = 4;
  spec.noise_heads = 2;
  const Case c(spec, GetParam().dtype);
  const std::vector<double> dstats(4 * kStatCount);
  const Backend& backend = *GetParam().backend;
  EXPECT_THROW(run_stats(backend, c, 1e-3), Error);
  EXPECT_THROW(run_stats_backward(backend, c, dstats), Error);
  EXPECT_THROW(run_map(backend, c, {0, 1, 0, 1, 1, 1}), Error);
}

TEST_P(ValidateBackend, MissingTensorsAreNamed) {
  Spec spec;
  spec.seq_q = 3;
  spec.seq_k = 5;
  const Case c(spec, GetParam().dtype);
  const auto expect_named = [](const char* name, const std::function<void()>& call) {
    try {
      call();
      ADD_FAILURE() << name << ": no error";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
    }
  };
  const auto with_problem = [&](auto params) {
    static_cast<Problem&>(params) = c.problem();
    return params;
  };
  const Backend& backend = *GetParam().backend;
  expect_named("'v'", [&] { backend.forward(with_problem(ForwardParams{})); });
  expect_named("'v'", [&] { backend.backward(with_problem(BackwardParams{})); });
  expect_named("'stats'", [&] { backend.stats(with_problem(StatsParams{})); });
  expect_named("'dstats'", [&] { backend.stats_backward(with_problem(StatsBackwardParams{})); });
  MapParams map = with_problem(MapParams{});
  map.row_end = map.rows = 3;
  map.col_end = map.cols = 5;
  expect_named("'map'", [&] { backend.map(map); });
  ForwardParams forward = with_problem(ForwardParams{});
  std::vector<double> room(64 * 64);
  forward.v.data = forward.out.data = forward.lse1.data = room.data();
  expect_named("'lse2'", [&] { backend.forward(forward); });
}

TEST_P(ValidateBackend, MapRanges) {
  Spec spec;
  spec.seq_q = 3;
  spec.seq_k = 5;
  const Case c(spec, GetParam().dtype);
  std::vector<double> room(3 * 15);
  for (const Tile& tile : {Tile{-1, 3, 0, 5, 1, 1}, Tile{0, 4, 0, 5, 1, 1}, Tile{2, 1, 0, 5, 1, 1},
                           Tile{0, 3, 0, 6, 1, 1}, Tile{0, 3, 4, 3, 1, 1}, Tile{0, 3, 0, 5, 4, 1},
                           Tile{0, 3, 0, 5, 0, 1}, Tile{0, 3, 0, 5, 1, 6}}) {
    MapParams p;
    static_cast<Problem&>(p) = c.problem();
    p.row_begin = tile.row_begin;
    p.row_end = tile.row_end;
    p.col_begin = tile.col_begin;
    p.col_end = tile.col_end;
    p.rows = tile.rows;
    p.cols = tile.cols;
    p.map = room.data();
    EXPECT_THROW(GetParam().backend->map(p), Error)
        << tile.row_begin << " " << tile.row_end << " " << tile.col_begin << " " << tile.col_end;
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, ValidateBackend, ::testing::ValuesIn(targets()), target_name);

}  // namespace
}  // namespace diffattn::testing
