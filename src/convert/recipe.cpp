// SPDX-License-Identifier: Apache-2.0
#include "convert/recipe.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "convert/numbers.h"
#include "diffattn/io/error.h"

namespace diffattn::convert {
namespace {

constexpr int64_t kBlockBytes = int64_t{16} << 20;

/// The sizes of a tensor, seen as a matrix.
struct Matrix {
  int64_t rows = 0, columns = 1;
};

Matrix matrix_of(std::span<const int64_t> shape) {
  return {shape.empty() ? 1 : shape[0], shape.size() < 2 ? 1 : shape[1]};
}

class RowMaker {
 public:
  RowMaker(const Output& output, std::span<const std::byte> source, Matrix source_size)
      : recipe_(output.recipe),
        tensor_(output.report.tensor),
        source_(source),
        source_size_(source_size),
        size_(matrix_of(tensor_.shape)),
        element_(bytes_of(tensor_.dtype)),
        numbers_(static_cast<size_t>(size_.columns)) {}

  int64_t rows() const { return size_.rows; }
  size_t row_bytes() const { return static_cast<size_t>(size_.columns) * element_; }

  void make(int64_t row, std::byte* out) {
    const int64_t from = recipe_.source.empty() ? kNone
                         : recipe_.rows.empty() ? row
                                                : recipe_.rows[static_cast<size_t>(row)];
    if (from == kNone) return made(row, out);
    const std::byte* begin =
        source_.data() + static_cast<size_t>(from * source_size_.columns) * element_;
    if (recipe_.columns.empty() && recipe_.factors.empty()) {
      std::memcpy(out, begin, row_bytes());
    } else {
      columns(begin, out);
    }
  }

 private:
  void made(int64_t row, std::byte* out) {
    std::ranges::fill(numbers_, 0.0);
    if (recipe_.fill) recipe_.fill(row, numbers_);
    for (size_t c = 0; c < numbers_.size(); ++c) {
      store_number(tensor_.dtype, numbers_[c], out + c * element_);
    }
  }

  void columns(const std::byte* begin, std::byte* out) {
    for (size_t c = 0; c < numbers_.size(); ++c, out += element_) {
      const int64_t from = recipe_.columns.empty() ? static_cast<int64_t>(c) : recipe_.columns[c];
      if (from == kNone) {
        store_number(tensor_.dtype, 0.0, out);
        continue;
      }
      const std::byte* at = begin + static_cast<size_t>(from) * element_;
      if (recipe_.factors.empty() || recipe_.factors[c] == 1.0) {
        std::memcpy(out, at, element_);  // also keeps the bits of a NaN
        continue;
      }
      const double value = load_number(tensor_.dtype, at);
      store_number(tensor_.dtype, value * recipe_.factors[c], out);
      if (std::isfinite(value) && !std::isfinite(load_number(tensor_.dtype, out))) {
        throw io::Error(tensor_.name,
                        "expected numbers within the range of " +
                            std::string(io::dtype_name(tensor_.dtype)) +
                            ", got one that exceeds it; use a dtype with a wider range");
      }
    }
  }

  const Recipe& recipe_;
  const io::TensorSpec& tensor_;
  std::span<const std::byte> source_;
  Matrix source_size_, size_;
  size_t element_;
  std::vector<double> numbers_;
};

}  // namespace

void run_recipe(const io::TensorSource& source, const Output& output, io::ShardedWriter& writer) {
  const std::string& name = output.report.tensor.name;
  std::vector<std::byte> data;
  Matrix source_size;
  if (!output.recipe.source.empty()) {
    data = source.read_bytes(output.recipe.source);
    source_size = matrix_of(source.at(output.recipe.source).shape);
  }
  if (output.recipe.is_copy()) return writer.write(name, data);
  RowMaker maker(output, data, source_size);
  const auto per_block = std::max<int64_t>(
      1, kBlockBytes / std::max<int64_t>(1, static_cast<int64_t>(maker.row_bytes())));
  std::vector<std::byte> block;
  for (int64_t begin = 0; begin < maker.rows(); begin += per_block) {
    const int64_t end = std::min(maker.rows(), begin + per_block);
    block.resize(static_cast<size_t>(end - begin) * maker.row_bytes());
    for (int64_t row = begin; row < end; ++row) {
      maker.make(row, block.data() + static_cast<size_t>(row - begin) * maker.row_bytes());
    }
    writer.append(name, block);
  }
}

std::vector<int64_t> first_rows(int64_t n) {
  std::vector<int64_t> rows(static_cast<size_t>(n));
  std::iota(rows.begin(), rows.end(), int64_t{0});
  return rows;
}

int64_t rotary_row(RotaryOrder order, int64_t i, int64_t d) {
  if (order == RotaryOrder::kHalfSplit) return i;
  return i < d / 2 ? 2 * i : 2 * (i - d / 2) + 1;
}

int64_t sub_head(HeadOrder order, int64_t j, int64_t s, int64_t pairs) {
  return order == HeadOrder::kStripes ? 2 * j + s : s * pairs + j;
}

std::vector<int64_t> rows_between(const RowOrder& to, RotaryOrder from, int64_t pairs, int64_t d,
                                  const std::function<int64_t(int64_t, int64_t)>& source_sub_head) {
  std::vector<int64_t> rows(static_cast<size_t>(2 * pairs * d));
  for (int64_t j = 0; j < pairs; ++j) {
    for (int64_t s = 0; s < 2; ++s) {
      const int64_t target = sub_head(to.heads, j, s, pairs) * d;
      const int64_t source = source_sub_head(j, s) * d;
      for (int64_t i = 0; i < d; ++i) {
        rows[static_cast<size_t>(target + rotary_row(to.rotary, i, d))] =
            source + rotary_row(from, i, d);
      }
    }
  }
  return rows;
}

}  // namespace diffattn::convert
