import { describe, expect, it } from "vitest";
import type { Admission, Routing } from "../src/api/types";
import { ROOM_WHYS } from "../src/i18n/codes";
import { en } from "../src/i18n/en";
import { zh } from "../src/i18n/zh";
import { roomSentence, roomState, tierSentence } from "../src/logic/room";

const seen = (admission: Partial<Admission>, affinity = true): Pick<Routing, "affinity" | "admission"> => ({
  affinity,
  admission: { mode: "auto", engaged: false, waiting: 0, room_for: null, demand_ratio: 1.42, gap_s: 1.7, ...admission },
});

describe("the waiting room", () => {
  it("is engaged, open or off", () => {
    expect(roomState(seen({ engaged: true }))).toBe("engaged");
    expect(roomState(seen({}))).toBe("open");
    expect(roomState(seen({ mode: "off", engaged: true }))).toBe("off");
    expect(roomState(seen({ engaged: true }, false))).toBe("off");
  });

  it("says why with the numbers", () => {
    const text = (admission: Partial<Admission>) => roomSentence(en, seen(admission)).text;
    expect(text({ why_code: "engaged", engaged: true })).toContain("need 142% of what the caches hold");
    expect(text({ why_code: "emptying", engaged: true, demand_ratio: 0 })).toContain("need 0% of what the caches hold, so all fit again");
    expect(text({ why_code: "open", demand_ratio: 0.4 })).toContain("need 40% of what the caches hold. Every request");
    expect(text({ why_code: "open", demand_ratio: 1.1 })).toContain("110% of what the caches hold, too little above to hold anybody");
    expect(text({ why_code: "settling" })).toContain("the room engages if that stays so");
    expect(text({ why_code: "settling", gap_s: null })).toContain("it is not known yet how long agents pause");
    expect(text({ why_code: "gaps" })).toContain("a quarter of the pauses exceeds 1.7 s");
    expect(text({ why_code: "kept", tier_tokens: 400_000 })).toContain("a CPU tier holds 400k tokens");
    expect(text({ why_code: "kept" })).not.toContain("CPU tier");
    expect(text({ mode: "off", why_code: "off" })).toBe(en.room.why.off);
    expect(roomSentence(zh, seen({ why_code: "engaged", engaged: true })).text).toContain("142%");
    expect(roomSentence(en, seen({ why_code: "off" }, false)).text).toBe(en.room.why.noAffinity);
  });

  it("has a sentence for every code in both languages, also where a number is not known", () => {
    for (const texts of [en, zh])
      for (const why_code of ROOM_WHYS)
        for (const demand_ratio of [0.4, null]) {
          const { text, english } = roomSentence(texts, seen({ why_code, demand_ratio, gap_s: null }));
          expect(text.length).toBeGreaterThan(8);
          expect(text).not.toMatch(/undefined|null|NaN/);
          if (texts === zh && why_code === "engaged") expect(text).toMatch(/^生效中/);
          expect(english).toBe(false);
        }
  });

  it("lets a code of a later version speak for itself, and an older warden say nothing", () => {
    expect(roomSentence(zh, seen({ why_code: "later", why: "Open: because." }))).toEqual({ text: "Open: because.", english: true });
    expect(roomSentence(en, seen({ why_code: null, engaged: true })).text).toContain("Engaged");
  });

  it("says how large a CPU tier would do", () => {
    const advice = { needed_tokens_per_replica: 92_000, needed_gib_per_replica: 12.6 };
    expect(tierSentence(en, advice)).toContain("about 13 GiB (92k tokens) for each replica");
    expect(tierSentence(zh, { ...advice, needed_gib_per_replica: null })).toContain("92k token");
  });
});
