"""What a kernel reads from memory, and what it finds in the second-level cache: the accesses of its blocks, in the
order in which the card starts the blocks, through a cache that drops what was used longest ago (LRU).

As many blocks are in work as the card holds; each makes one access, then each makes the next one, and where a block
ends, the next of the grid takes its place. An access is a tile of rows, so all that is known of time is that tiles take
the same time. What is written passes through the cache too.
"""
import collections
import functools


class Access(collections.namedtuple("Access", "what head first rows bytes written")):
    """Rows `first` .. first + rows - 1 of a head, in one or more tensors that are always copied together."""
    __slots__ = ()
    place = property(lambda a: a[:4])


Traffic = collections.namedtuple("Traffic", "read asked rounds accesses slots")


def tail(traffic):
    """The time from the first block to the last, as a multiple of what it would be with all slots busy to the end."""
    return traffic.rounds * traffic.slots / traffic.accesses


def replay(blocks, slots, capacity):
    """blocks: for each block of the grid, in order, its accesses; slots: blocks in work at once; capacity: bytes."""
    cache, used, read, asked, rounds, accesses = collections.OrderedDict(), 0, 0, 0, 0, 0
    waiting = iter(blocks)
    start = lambda: iter(next(waiting, ()))
    working = [start() for _ in range(slots)]
    busiest = 0
    while working:
        left = []
        for block in working:
            access = next(block, None)
            if access is None:
                block = start()
                access = next(block, None)
            if access is None:
                continue
            left.append(block)
            place = access.place
            if place in cache:
                cache.move_to_end(place)
            else:
                cache[place] = access.bytes
                used += access.bytes
                read += 0 if access.written else access.bytes
                while used > capacity:
                    used -= cache.popitem(last=False)[1]
            asked += 0 if access.written else access.bytes
        working = left
        rounds += bool(left)
        accesses += len(left)
        busiest = max(busiest, len(left))
    return Traffic(read, asked, rounds, accesses, busiest)


# ---- attention: the order of its blocks, and what each of them copies

def rows_of_all_heads(heads, tiles):
    """One tile of every head, then the next. 0: the longest."""
    return ((head, tile) for tile in range(tiles) for head in range(heads))


def groups_of_heads(heads, tiles, group):
    """All tiles of a group of heads, the longest first, then the next group."""
    return ((head, tile) for first in range(0, heads, group) for tile in range(tiles)
            for head in range(first, min(heads, first + group)))


def head_by_head(heads, tiles):
    return groups_of_heads(heads, tiles, 1)


def attention_group(heads, T, row_bytes, cache_bytes):
    """The heads of a group of the kernels that ship, as in attention_block.cuh."""
    fit = max(1, int(cache_bytes) // 4 // (2 * T * row_bytes))
    return -(-heads // -(-heads // fit))


ORDERS = "rows of all heads, or groups:N of so many heads"


def order_of(text):
    """An order by its name on a command line."""
    kind, _, group = text.partition(":")
    orders = {"rows": lambda: rows_of_all_heads, "groups": lambda: functools.partial(groups_of_heads, group=int(group))}
    return orders[kind]()


# Attention's kernels, as they keep `rows` rows of a head and copy `columns` rows of it again and again. transposed: the
# rows are keys, which the queries from the first of them on see; otherwise queries, which see the keys up to theirs.
# results: tensors of which a block writes its rows; kept: tensors of which it copies its rows once.
Tiles = collections.namedtuple("Tiles", "heads T head_size rows columns transposed kept results type_bytes")
KEPT, COPIED, RESULTS = "kept", "copied", "results"


def accesses_of_block(t, head, place):
    """What a block copies. place: 0 is the longest of the tiles of a head."""
    row_bytes = t.head_size * t.type_bytes
    tiles = -(-t.T // t.rows)
    first = (place if t.transposed else tiles - 1 - place) * t.rows
    rows = min(t.rows, t.T - first)
    begin, end = (first, t.T) if t.transposed else (0, first + rows)
    statistics = 8 if t.transposed else 0  # lse and delta of a row
    yield Access(KEPT, head, first, rows, t.kept * rows * row_bytes, False)
    for row in range(begin, end, t.columns):
        columns = min(t.columns, t.T - row)
        yield Access(COPIED, head, row, columns, columns * (2 * row_bytes + statistics), False)
    yield Access(RESULTS, head, first, rows, t.results * rows * row_bytes, True)


@functools.lru_cache(None)
def shipped_order(t, cache_bytes):
    group = attention_group(t.heads, t.T, t.head_size * t.type_bytes, cache_bytes)
    return functools.partial(groups_of_heads, group=group)


@functools.lru_cache(None)
def attention_traffic(t, slots, capacity, order):
    return replay((accesses_of_block(t, *block) for block in order(t.heads, -(-t.T // t.rows))), slots, capacity)


# ---- the classifier: a block reads a row of logits, then turns it into its gradient, from its end to its beginning

PIECES = 12  # of a row, one access each


@functools.lru_cache(None)
def twice_read_rows(rows, row_bytes, slots, capacity):
    piece = row_bytes / PIECES
    forth = lambda row: [Access(KEPT, row, i, 1, piece, False) for i in range(PIECES)]
    return replay((forth(row) + forth(row)[::-1] for row in range(rows)), slots, capacity)
