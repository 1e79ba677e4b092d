import { afterEach, describe, expect, it } from "vitest";
import { axisRate, bytes, compact, count, percent, rate, seconds, span, UNKNOWN, unix } from "../src/format";
import { lang } from "../src/prefs";

afterEach(() => {
  lang.value = "en";
});

describe("numbers", () => {
  it("tells not known from zero", () => {
    for (const write of [count, compact, rate, percent, seconds, span, axisRate, bytes]) {
      expect(write(null)).toBe(UNKNOWN);
      expect(write(undefined)).toBe(UNKNOWN);
      expect(write(Number.NaN)).toBe(UNKNOWN);
      expect(write(0)).not.toBe(UNKNOWN);
    }
    expect(count(0)).toBe("0");
    expect(percent(0)).toBe("0%");
    expect(axisRate(0)).toBe("0");
  });

  it.each([
    [7, "7"],
    [999, "999"],
    [1000, "1k"],
    [12_345, "12.3k"],
    [999_999, "1,000k"],
    [1_500_000, "1.5M"],
    [-2500, "-2.5k"],
    [3e9, "3G"],
  ])("shortens %d to %s", (value, text) => expect(compact(value)).toBe(text));

  it.each([
    [0, "0"],
    [0.04, "0.0"],
    [3.21, "3.2"],
    [42.4, "42"],
    [5119.6, "5,120"],
    [22_100, "22.1k"],
  ])("writes the rate %d as %s", (value, text) => expect(rate(value)).toBe(text));

  it("writes a share as the card does", () => {
    expect(percent(1, 1)).toBe("100.0%");
    expect(percent(0.784)).toBe("78%");
  });
});

describe("times", () => {
  it.each([
    [0, "0 s"],
    [0.0004, "0.4 ms"],
    [0.045, "45 ms"],
    [0.5, "0.50 s"],
    [3.21, "3.2 s"],
    [42, "42 s"],
    [75, "1 min 15 s"],
  ])("writes %d s as %s", (value, text) => expect(seconds(value)).toBe(text));

  it.each([
    [0, "0 s"],
    [59.9, "59 s"],
    [60, "1 min"],
    [11_520, "3 h 12 min"],
    [90_000, "1 d 1 h"],
    [86_400, "1 d"],
  ])("writes the span %d as %s", (value, text) => expect(span(value)).toBe(text));

  it("speaks Chinese", () => {
    lang.value = "zh";
    expect(span(11_520)).toBe("3 小时 12 分");
  });

  it("reads both forms of a moment", () => {
    expect(unix("2026-11-30T00:00:00Z")).toBe(1_795_996_800);
    expect(unix(12.5)).toBe(12.5);
    expect(unix("nonsense")).toBeNull();
    expect(unix(null)).toBeNull();
  });
});
