import { describe, expect, it } from "vitest";
import type { Admission, CachedShares, PrefixBreaker, ReplicaRow, Routing, Series } from "../src/api/types";
import { legendOrder, lonely, widerBars, type PlotSpec } from "../src/logic/plot-spec";
import { en } from "../src/i18n/en";
import { byCause } from "../src/logic/breakers";
import { busiestSentence } from "../src/logic/busiest";
import { append, merge, olderAreGone } from "../src/logic/paging";
import { fromLocalInput, parseRange, rangeQuery, refreshMs, toLocalInput } from "../src/logic/range";
import { align, column, evenSplits, group, hasData, largest, latestKnown, roundUp, stack, sum } from "../src/logic/series";
import { bySection } from "../src/logic/settings";
import { completionTokens, mostly, parts, promptParts, slowFrom } from "../src/logic/timing";
import { flatten } from "../src/logic/tree";
import { columnsOf, sortRows, withShares } from "../src/pages/model/columns";
import { href, parseHash } from "../src/route";
import { ROW_PX, windowOf } from "../src/ui/virtual";

const series = (times: number[]): Series => ({ from: 0, to: 100, step_s: 10, points: times.map((t) => ({ t, v: t })) });

describe("series", () => {
  it("makes a hole where buckets are missing, and none where they are not", () => {
    expect(align(series([0, 10, 20])).times).toEqual([0, 10, 20]);
    expect(align(series([0, 10, 30])).times).toEqual([0, 10, 20, 30]);
    const { times, points } = align(series([0, 10, 90]));
    expect(times).toEqual([0, 10, 20, 80, 90]);
    expect(column(points, "v")).toEqual([0, 10, null, null, 90]);
    expect(column(points, "other")).toEqual([null, null, null, null, null]);
  });

  it("adds what is known and does not make up the rest", () => {
    expect(sum([1, null, null], [2, 3, null])).toEqual([3, 3, null]);
    expect(
      stack([
        [1, 1],
        [2, null],
        [3, null],
      ]),
    ).toEqual([
      [6, 1],
      [5, null],
      [3, null],
    ]);
    expect(hasData([[null, null]])).toBe(false);
    expect(largest([null, 3], [2])).toBe(3);
    expect(
      latestKnown([
        [1, null, null],
        [null, 2, null],
      ]),
    ).toBe(1);
    expect(latestKnown([[null]])).toBeNull();
  });

  it.each([
    [0, 1],
    [0.03, 0.05],
    [1, 1],
    [3, 5],
    [7001, 10_000],
    [240, 250],
  ])("rounds %d up to %d", (value, top) => expect(roundUp(value)).toBeCloseTo(top));

  it.each([
    [1, [0, 0.25, 0.5, 0.75, 1]],
    [10, [0, 2, 4, 6, 8, 10]],
    [5000, [0, 1000, 2000, 3000, 4000, 5000]],
    [2, [0, 0.5, 1, 1.5, 2]],
    [3, [0, 1, 2, 3]],
    [64, [0, 16, 32, 48, 64]],
  ])("labels an axis up to %d evenly", (top, splits) => expect(evenSplits(top)).toEqual(splits));

  it("joins buckets into bars wide enough to be seen, at fixed places, and keeps their mean", () => {
    const values = [10, 20, null, null, null, null, 5, 7];
    const spec: PlotSpec = {
      times: values.map((_, i) => 100 + i * 10),
      from: 100,
      to: 180,
      stepS: 10,
      format: String,
      lines: [{ label: "a", color: "blue", kind: "bars", values, own: values }],
    };
    const wide = widerBars(spec, 16);
    expect(wide.stepS).toBe(30);
    expect(wide.times).toEqual([90, 120, 150]);
    expect(wide.lines[0]!.values).toEqual([15, null, 6]);
    expect(widerBars(spec, 800)).toBe(spec);
    expect(group([100, 110, 130], 20).map(({ t }) => t)).toEqual([100, 120]);
  });

  it("shows a point that is no line", () => {
    expect(lonely([1, null, 2, 3, null, 4])).toEqual([0, 5]);
  });

  it("reads a stack from its bottom", () => {
    const line = (label: string, own?: number[]) => ({
      label,
      color: "blue" as const,
      kind: "bars" as const,
      values: [],
      ...(own ? { own } : {}),
    });
    expect(legendOrder([line("top", []), line("bottom", []), line("other")]).map((one) => one.label)).toEqual(["bottom", "top", "other"]);
  });
});

describe("subagents", () => {
  const item = (id: string, parent: string | null) => ({ id, parent });
  it("hang below who started them", () => {
    const rows = flatten([item("c", "b"), item("a", null), item("b", "a"), item("d", "gone")]);
    expect(rows.map(({ item: { id }, depth }) => [id, depth])).toEqual([
      ["a", 0],
      ["b", 1],
      ["c", 2],
      ["d", 0],
    ]);
  });
  it("survive a ring", () => {
    expect(flatten([item("a", "b"), item("b", "a"), item("s", "s")])).toHaveLength(3);
  });
});

describe("where the time went", () => {
  const turn = { waited_s: 6, first_byte_s: 7, duration_s: 10 };
  const split = (one: Parameters<typeof parts>[0]) => Object.fromEntries(parts(one).map((part) => [part.name, part.seconds]));
  it("splits it without a rest", () => {
    expect(split(turn)).toEqual({ waited: 6, first: 1, decode: 3 });
    expect(mostly(turn)).toBe("waited");
    expect(mostly({ waited_s: 3, first_byte_s: 6, duration_s: 10 })).toBeNull();
    expect(split({ ...turn, waited_s: 0.001 })).toEqual({ first: 6.999, decode: 3 });
  });
  it("does not split what nothing divides", () => {
    expect(split({ ...turn, streamed: false })).toEqual({ waited: 6, whole: 4 });
    expect(mostly({ waited_s: 0, first_byte_s: 9, duration_s: 9, streamed: false })).toBe("whole");
    expect(split({ waited_s: 1, first_byte_s: null, duration_s: 2 })).toEqual({ waited: 1, unanswered: 1 });
    expect(mostly({ waited_s: 0, first_byte_s: null, duration_s: 2 })).toBeNull();
    expect(split({ waited_s: 0, first_byte_s: null, duration_s: 0 })).toEqual({ unanswered: 0 });
    expect(split({ waited_s: 5, first_byte_s: null, duration_s: 5 })).toEqual({ waited: 5 });
  });
  it("calls slow what takes twice the usual time", () => {
    expect(slowFrom([2, 9, 2, 3])).toBe(6);
    expect(slowFrom([0.1, 0.1, 0.1, 0.3])).toBe(1);
    expect(slowFrom([1, 100])).toBe(Number.POSITIVE_INFINITY);
  });
  it("makes no zero of what was not measured", () => {
    expect(promptParts({ prompt_tokens: 100, cached_tokens: null })).toEqual({ prompt: 100, cached: null, computed: null });
    expect(promptParts({ prompt_tokens: 100, cached_tokens: 96 })).toEqual({ prompt: 100, cached: 96, computed: 4 });
    expect(promptParts({ prompt_tokens: null, cached_tokens: null })).toBeNull();
    expect(completionTokens({ completion_tokens: 0, outcome: "cancelled" })).toBeNull();
    expect(completionTokens({ completion_tokens: 7, outcome: "cancelled" })).toBe(7);
    expect(completionTokens({ completion_tokens: 0, outcome: "ok" })).toBe(0);
  });
});

describe("lists in pages", () => {
  const id = (row: { id: string }) => row.id;
  const rows = (...ids: string[]) => ids.map((name) => ({ id: name }));
  it("take the newest page and keep what was read below it", () => {
    expect(merge(rows("a", "b"), rows("n", "a"), id, false)).toEqual(rows("n", "a"));
    expect(merge(rows("a", "b", "c"), rows("n", "a"), id, false)).toEqual(rows("n", "a", "b", "c"));
  });
  it("keep their places while held", () => {
    const shown = [
      { id: "a", v: 1 },
      { id: "b", v: 1 },
    ];
    expect(
      merge(
        shown,
        [
          { id: "b", v: 2 },
          { id: "n", v: 2 },
        ],
        id,
        true,
      ),
    ).toEqual([
      { id: "a", v: 1 },
      { id: "b", v: 2 },
    ]);
  });
  it("take no row twice", () => {
    expect(append(rows("a", "b"), rows("b", "c"), id)).toEqual(rows("a", "b", "c"));
  });
  it("draw only what is in view", () => {
    expect(windowOf(0, 10 * ROW_PX, 5000)).toEqual({ first: 0, last: 18 });
    expect(windowOf(1000 * ROW_PX, 10 * ROW_PX, 5000)).toEqual({ first: 992, last: 1018 });
    expect(windowOf(9e9, 10 * ROW_PX, 20)).toEqual({ first: 12, last: 20 });
  });
});

describe("addresses", () => {
  it("carry any model's name", () => {
    const where = href(["models", "org/name:1 b%"], { model: "x&y", none: null });
    expect(parseHash(where).parts).toEqual(["models", "org/name:1 b%"]);
    expect(parseHash(where).query.get("model")).toBe("x&y");
    expect(parseHash("#/a%").parts).toEqual(["a%"]);
    expect(parseHash("").parts).toEqual([]);
  });

  it("carry a time range, and a nonsense one is the last hour", () => {
    expect(parseRange(new URLSearchParams("window=7d"))).toEqual({ window: "7d", from: null, to: null });
    expect(parseRange(new URLSearchParams("from=20&to=10&window=x")).window).toBe("1h");
    const free = parseRange(new URLSearchParams("from=10.5&to=20.2"));
    expect(rangeQuery(free)).toEqual({ from: "10", to: "21" });
    expect(refreshMs(free, 1e9)).toBe(0);
    expect(refreshMs({ ...free, to: 1e9 }, 1e9)).toBeGreaterThan(0);
    const now = 1_795_996_800;
    expect(fromLocalInput(toLocalInput(now))).toBe(now);
    expect(fromLocalInput("")).toBeNull();
  });
});

describe("the busiest replica", () => {
  const row = (replica: string, in_flight: number, more: object = {}) => ({
    replica,
    in_flight,
    conversations: 0,
    resident_tokens: 0,
    kv_cache_tokens: 1000,
    spilled_in: 0,
    ...more,
  });
  const routing = (...replicas: object[]) => ({ affinity: true, spill_threshold: 8, replicas }) as unknown as Routing;
  it("is named with the reason", () => {
    const sentence = busiestSentence(
      en,
      routing(row("e0/0", 1), row("e0/1", 9, { conversations: 7, resident_tokens: 700, spilled_in: 2 })),
    );
    expect(sentence).toBe(
      "Busiest: e0/1 with 9 in flight, 90% of all. It is the home of 7 live conversations that hold 70% of its cache. 2 requests spilled to it from others. It is above the spill threshold: its later turns go elsewhere for now.",
    );
  });
  it("is nobody where all are the same", () => {
    const off = {
      ...routing({ ...row("e0/0", 0), running: 5, waiting: 2 }, { ...row("e0/1", 0), running: 3, waiting: 1 }),
      affinity: false,
    };
    expect(busiestSentence(en, off)).toBe(en.model.busiestUnrouted("e0/0", "7"));
    expect(busiestSentence(en, routing(row("e0/0", 0), row("e0/1", 0)))).toBe(en.model.quiet);
    expect(busiestSentence(en, routing(row("e0/0", 2), row("e0/1", 2)))).toBe("All replicas have 2 in flight.");
    expect(busiestSentence(en, routing())).toBeNull();
  });
  it("sorts like a person: e0/2 before e0/10, and not known last", () => {
    const { replicas } = routing(
      row("e0/10", 1, { prefix_hit_ratio: null }),
      row("e0/2", 3, { prefix_hit_ratio: 0.5 }),
      row("e1/0", 2, { prefix_hit_ratio: 0.7 }),
    );
    const rows = withShares(replicas, null);
    expect(sortRows(rows, "replica", false).map((one) => one.replica)).toEqual(["e0/2", "e0/10", "e1/0"]);
    expect(sortRows(rows, "inFlight", true).map((one) => one.in_flight)).toEqual([3, 2, 1]);
    for (const down of [true, false]) expect(sortRows(rows, "hitRate", down).at(-1)!.replica).toBe("e0/10");
  });
});

describe("the columns of the card", () => {
  const rows = [{ replica: "e0/0" }, { replica: "e0/1" }] as ReplicaRow[];
  const seen = (replicas: ReplicaRow[], engaged = false) => ({ replicas, admission: { engaged } as Admission });
  it("have the last hour's share beside the engine's counter, which says since when it counts", () => {
    const share = { replica: "e0/1", cached_ratio: 0.25, prompt_tokens: 8, first_byte_p50_s: 0.5, first_byte_p95_s: 2 };
    const ratios = (shares: CachedShares | null) => withShares(rows, shares).map((row) => row.hour.cached_ratio);
    expect(ratios({ cached_ratio: 0.5, replicas: [share] })).toEqual([null, 0.25]);
    expect(ratios(null)).toEqual([null, null]);
    const notes = Object.fromEntries(columnsOf(en, seen(rows)).map((one) => [one.key, one.note]));
    expect(notes["hitRate"]).toBe("since the warden's start");
  });
  it("show places while they are held", () => {
    const keys = (some: ReplicaRow[], engaged = true) => columnsOf(en, seen(some, engaged)).map((one) => one.key);
    const held = [rows[0]!, { ...rows[1]!, residents: 0 }];
    expect(keys(rows)).not.toContain("places");
    expect(keys(held)).toContain("places");
    expect(keys(held, false)).not.toContain("places");
  });
});

describe("what breaks prefixes", () => {
  const breaker = (cause: string, client: string | null, recomputed_tokens: number) =>
    ({ cause, client, recomputed_tokens }) as PrefixBreaker;
  it("is told once for each cause, with all its clients", () => {
    const items = [breaker("evicted", "codex", 30), breaker("timestamp", null, 50), breaker("evicted", "curl", 40)];
    const groups = byCause(items).map((group) => group.map((item) => `${item.cause} ${item.client} ${item.recomputed_tokens}`));
    expect(groups).toEqual([["evicted curl 40", "evicted codex 30"], ["timestamp null 50"]]);
    expect(byCause([])).toEqual([]);
  });
});

describe("settings", () => {
  it("stand under their table", () => {
    const item = (key: string) => ({ key, value: 1, source: "default" });
    expect(
      bySection([item("a.b"), item("c"), item("models[0].routing.x"), item("a.d")]).map(([name, list]) => [name, list.length]),
    ).toEqual([
      ["a", 2],
      ["", 1],
      ["models[0].routing", 1],
    ]);
  });
});

describe("older turns", () => {
  const row = { turns: 12, in_flight: 0, last_used: 1000 };
  it("are gone where rows are fewer than the turns that have ended", () => {
    expect(olderAreGone(row, 12, 2000)).toBe(false);
    expect(olderAreGone(row, 11, 2000)).toBe(true);
    expect(olderAreGone({ ...row, in_flight: 2 }, 10, 2000)).toBe(false);
    expect(olderAreGone({ ...row, in_flight: 2 }, 9, 2000)).toBe(true);
  });
  it("are not taken for gone while the last one is written", () => {
    expect(olderAreGone(row, 11, 1001)).toBe(false);
    expect(olderAreGone(row, 10, 1001)).toBe(true);
    expect(olderAreGone({ ...row, in_flight: 1 }, 10, 1001)).toBe(false);
  });
});
