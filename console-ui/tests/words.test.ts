import { describe, expect, it } from "vitest";
import type { Turn } from "../src/api/types";
import { CAUSES, CHECKS, WHYS } from "../src/i18n/codes";
import { en } from "../src/i18n/en";
import { zh } from "../src/i18n/zh";
import { causeWords, clientName, ownAnswer, replicaName, warningWords, whyCode, whySentence } from "../src/logic/words";

type Decided = Parameters<typeof whySentence>[1];
const turn = (values: Partial<Turn>): Decided => ({
  decision: "sticky",
  outcome: "ok",
  why: "not_above",
  replica: "e0/1",
  home: "e0/1",
  home_in_flight: 3,
  spill_threshold: 8,
  candidates: null,
  ...values,
});
const score = (replica: string | [string, number], value: number) => ({ replica, score: value, in_flight: 0 });

describe("why a turn went where it went", () => {
  it.each([
    [turn({}), "Stayed home: e0/1 had 3 in flight, not above the spill threshold 8."],
    [
      turn({ why: "above", decision: "spilled", replica: "e0/2", home_in_flight: 11 }),
      "Its home e0/1 had 11 in flight, above the spill threshold 8; e0/2 took this turn.",
    ],
    [turn({ why: "named", decision: "client_pinned" }), "The client named e0/1 itself."],
    [turn({ why: "affinity_off", decision: "unrouted", replica: null }), "Affinity was off: the engine's own balancer decided."],
    [turn({ decision: null, why: null, outcome: "refused" }), en.why.refused],
    [turn({ decision: null, why: null, outcome: "cancelled" }), "Not forwarded: the client left before, while it waited."],
    [
      turn({ decision: "rehomed", why: "room", home: "e0/1", replica: "e0/3" }),
      "It waited for a place; its home e0/1 no longer held its context, and e0/3 had room.",
    ],
    // An older row has no reason: what the decision means is said instead.
    [turn({ why: null }), en.decisionMeans.sticky],
    [turn({ why: "a reason of a later version" }), en.decisionMeans.sticky],
  ])("%#", (row, sentence) => expect(whySentence(en, row)).toBe(sentence));

  it("names the score and the next best", () => {
    const candidates = [score("e0/0", 0.9), score(["e0", 1], 0.25), score("e0/2", 0.751)];
    const placed = turn({ decision: "placed", why: "least_loaded", home: null, candidates });
    expect(whySentence(en, placed)).toBe("New conversation: e0/1 was the least loaded of 3 (score 0.25; next e0/2 with 0.75).");
    expect(whySentence(zh, placed)).toBe("新对话：e0/1 在 3 个副本中负载最低（得分 0.25；其次 e0/2 为 0.75）。");
    expect(whySentence(en, turn({ ...placed, decision: "rehomed", home: "e1/0" }))).toContain(
      "Its home e1/0 was lost or drained; new home: e0/1",
    );
    expect(whySentence(en, turn({ ...placed, candidates: null }))).toBe("New conversation: e0/1 was the least loaded.");
  });

  it("takes the router's own words too", () => {
    expect(whyCode("not above the threshold")).toBe("not_above");
    expect(whyCode("least loaded")).toBe("least_loaded");
    expect(whyCode("ABOVE")).toBe("above");
    expect(whyCode("")).toBeNull();
  });

  it("has a sentence for every reason in both languages, and none is empty or has a hole", () => {
    for (const texts of [en, zh]) {
      for (const why of WHYS) {
        const sentence = whySentence(texts, turn({ why }));
        expect(sentence.length).toBeGreaterThan(4);
        expect(sentence).not.toMatch(/undefined|null|NaN/);
      }
    }
  });
});

describe("words for codes", () => {
  it("knows what breaks a prefix, and shows what it does not know", () => {
    for (const texts of [en, zh]) for (const cause of CAUSES) expect(causeWords(texts, cause).todo).toBeTruthy();
    expect(causeWords(en, "a_new_cause").title).toBe("a new cause");
  });

  it("gives a warning its headline and keeps the server's numbers", () => {
    const warning = { code: "stale_metrics", text: "the last good look is 14 s old", what_to_do: "server" };
    expect(warningWords(zh, warning)).toEqual({
      title: zh.checks.stale_metrics.title,
      text: "The last good look is 14 s old",
      english: true,
      todo: zh.checks.stale_metrics.todo,
    });
    expect(warningWords(en, { ...warning, code: "of_a_later_version" })).toEqual({
      title: "",
      text: "The last good look is 14 s old",
      english: true,
      todo: "server",
    });
    expect(CHECKS).toContain("stale_metrics");
  });

  it("says a check in Chinese where all its numbers came, and in the server's English where one is missing", () => {
    const check = { code: "stale_metrics", text: "server", what_to_do: null, params: { engine: "e0", age_s: 1400 } };
    expect(warningWords(zh, check)).toMatchObject({ text: "e0 的指标上一次成功读取是在 1,400 秒前", english: false });
    expect(warningWords(zh, { ...check, params: { engine: "e0" } })).toMatchObject({ text: "server", english: true });
    expect(warningWords(en, check)).toMatchObject({ text: "server", english: true });
    const share = { code: "prefix", level: "ok" as const, text: "server", what_to_do: null, params: { share: 0.784 } };
    expect(warningWords(zh, share).text).toBe("提示中 78% 来自缓存");
    // The same code says another thing where all is well.
    const ledger = { code: "ledger", text: "server", what_to_do: null };
    expect(warningWords(zh, { ...ledger, level: "ok" }).text).toBe("历史与归属已写入");
    expect(warningWords(zh, { ...ledger, level: "warning", params: { trouble: "disk is full" } }).text).toBe("历史与归属：disk is full");
  });

  it.each([
    ["engine_down", "why", "e0（http://a:1）没有响应"],
    ["engine_hangs", "why", "e0 的进程在运行但没有响应"],
    ["engine_starting", "step", "e0 正在启动"],
    ["engine_stopping", "reason", "e0 正在停止"],
    ["engine_failed", "reason", "e0 无法启动"],
    ["pin_failed", "detail", "e0 在 /v1/messages 上不遵守指定的 rank"],
    ["pin_unverified", "detail", "尚不清楚 e0 在 /v1/messages 上是否遵守 rank"],
  ])("keeps the reason of %s in Chinese, and does without where there is none", (code, name, sentence) => {
    const params = { engine: "e0", url: "http://a:1", path: "/v1/messages" };
    const told = (more: Record<string, string>) =>
      warningWords(zh, { code, text: "server", what_to_do: null, params: { ...params, ...more } });
    expect(told({ [name]: "no [::1] route" })).toMatchObject({ text: `${sentence}：no [::1] route`, english: false });
    for (const none of [{}, { [name]: "" }]) expect(told(none)).toMatchObject({ text: sentence, english: false });
  });

  it.each([
    [
      { when: "starting", exit_status: 2, pause_s: 4, last_line: "oom" },
      "e0 崩溃了：在就绪之前以退出状态 2 结束；4 秒后再次启动（日志最后一行：oom）",
    ],
    [{ when: "running", signal: 9, step: "importing" }, "e0 崩溃了：在运行中被信号 9 终止；正在重新启动（正在载入程序）"],
    [{ reason: "it could not be started" }, "e0 崩溃了：it could not be started"],
    [
      { when: "running", signal: 9, step: "a step of a later version" },
      "e0 崩溃了：在运行中被信号 9 终止；正在重新启动（a step of a later version）",
    ],
  ])("says in Chinese how an engine crashed: %#", (params, sentence) => {
    const warning = { code: "engine_crashed", text: "server", what_to_do: null, params: { engine: "e0", detail: "in English", ...params } };
    expect(warningWords(zh, warning)).toMatchObject({ text: sentence, english: false });
  });

  it("says how large a CPU tier would end the waiting, where that is known", () => {
    const warning = { code: "waiting_room", text: "server", what_to_do: null };
    const sized = { ...warning, params: { tier_tokens: 73_000, tier_gib: 10.1 } };
    expect(warningWords(en, sized).todo).toContain("(kv_offload_gib) of at least 73,000 tokens for each replica, which are 10 GiB, end");
    expect(warningWords(zh, sized).todo).toContain("kv_offload_gib，每个副本至少 73,000 token，即 10 GiB");
    expect(warningWords(en, warning).todo).toMatch(/a CPU tier \(kv_offload_gib\) end the waiting\.$/);
    const tier = { ...warning, code: "cpu_tier" };
    expect(warningWords(en, tier).todo).toBe("Set kv_offload_gib under [models.engine], or vLLM's --kv-offloading-size.");
  });

  it("begins a sentence with a capital, and leaves names as they are", () => {
    const text = (sentence: string) => warningWords(en, { code: "ledger", text: sentence, what_to_do: null }).text;
    expect(text("affinity is off: conversations move")).toBe("Affinity is off: conversations move");
    expect(text("history and homes: no disk")).toBe("History and homes: no disk");
    for (const name of ["e0: it ended", "e3/0 was taken out", "max_num_seqs is not known"]) expect(text(name)).toBe(name);
  });

  it("names the warden's own answers, also those of a later version", () => {
    expect(ownAnswer(en, "model_not_found")).toBe("unknown model");
    expect(ownAnswer(zh, "a_new_code")).toBe("a new code");
  });

  it("names clients and replicas", () => {
    expect(clientName(en, "claude-code")).toBe("Claude Code");
    expect(clientName(en, "something-else")).toBe("something-else");
    expect(replicaName(["e0", 3])).toBe("e0/3");
  });
});

describe("the dictionaries", () => {
  // tsc sees that none is missing; this sees that none was left in English by mistake.
  const strings = (value: unknown, path = ""): [string, string][] =>
    typeof value === "string"
      ? [[path, value]]
      : value && typeof value === "object"
        ? Object.entries(value).flatMap(([key, inner]) => strings(inner, `${path}.${key}`))
        : [];

  it("are both translated", () => {
    const english = new Map(strings(en));
    const same = strings(zh)
      .filter(([path, text]) => english.get(path) === text && /[a-z]{3}/i.test(text))
      .map(([path]) => path);
    expect(same.filter((path) => !/^\.(client|stats\.p\d\d|stats\.(csv|png))/.test(path))).toEqual([]);
  });
});
