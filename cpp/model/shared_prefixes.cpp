#include "model/shared_prefixes.h"

#include <algorithm>
#include <map>

namespace weft {
namespace {

// Sequences with fewer tiles in common are processed one by one.
constexpr int kFewestShared = 4;
// Shared tiles are read head by head, which costs something: sharing must save at least one in this many of all
// tiles.
constexpr std::int64_t kSparedOfTiles = 4;

using Family = std::vector<Piece>;

struct Sharing {
    const Plan& plan;
    const std::span<const std::int32_t> positions;
    std::vector<Piece> pieces;
    std::vector<std::int32_t> order;
    std::int64_t num_tiles = 0;
    std::int64_t num_spared = 0;

    const std::int32_t* tiles_of(const Piece& piece) const { return plan.tiles.data() + piece.first_tile; }

    // Number of tiles before the one that the piece's only row is written to.
    int whole_tiles(const Piece& piece) const {
        return positions[static_cast<std::size_t>(piece.first_row)] / kLanes;
    }

    bool may_share(const Piece& piece) const {
        return piece.last_row - piece.first_row == 1 && whole_tiles(piece) >= kFewestShared;
    }

    // Pieces that may share, by one of their tiles: a cached tile always has the same tiles before it.
    std::map<std::int32_t, Family> families() const {
        std::map<std::int32_t, Family> by_tile;
        for (const Piece& piece : plan.pieces)
            if (may_share(piece)) by_tile[tiles_of(piece)[kFewestShared - 1]].push_back(piece);
        return by_tile;
    }

    int tiles_in_common(const Family& family) const {
        const std::int32_t* first = tiles_of(family.front());
        int count = whole_tiles(family.front());
        for (const Piece& piece : family) {
            count = std::min(count, whole_tiles(piece));
            count = static_cast<int>(std::mismatch(first, first + count, tiles_of(piece)).first - first);
        }
        return count;
    }

    void add_family(const Family& family, int most_rows) {
        const int shared = tiles_in_common(family);
        const auto size = static_cast<int>(family.size());
        for (int begin = 0; begin < size; begin += most_rows) {
            const int end = std::min(size, begin + most_rows);
            const bool is_shared = shared >= kFewestShared && end - begin > 1;
            if (is_shared) {
                const auto first = static_cast<int>(order.size());
                pieces.push_back({first, first + end - begin, 0, shared});
                num_spared += static_cast<std::int64_t>(end - begin - 1) * shared;
            }
            for (int i = begin; i < end; i++) {
                const Piece& piece = family[static_cast<std::size_t>(i)];
                num_tiles += whole_tiles(piece) + 1;
                if (is_shared) order.push_back(piece.first_row);
                else pieces.push_back(piece);
            }
        }
    }
};

}  // namespace

void share_prefixes(Plan& plan, std::span<const std::int32_t> positions, int most_rows) {
    Sharing sharing{plan, positions, {}, {}};
    for (const auto& [tile, family] : sharing.families()) sharing.add_family(family, most_rows);
    if (sharing.num_spared == 0 || sharing.num_spared * kSparedOfTiles < sharing.num_tiles) return;
    plan.row_tiles.resize(static_cast<std::size_t>(plan.rows));
    for (const Piece& piece : plan.pieces) {
        for (int row = piece.first_row; row < piece.last_row; row++)
            plan.row_tiles[static_cast<std::size_t>(row)] = piece.first_tile;
        if (!sharing.may_share(piece)) sharing.pieces.push_back(piece);
    }
    plan.pieces = std::move(sharing.pieces);
    plan.order = std::move(sharing.order);
    for (const Piece& piece : plan.pieces) plan.max_tokens = std::max(plan.max_tokens, piece.last_row - piece.first_row);
}

}  // namespace weft
