import { describe, expect, it } from "vitest";
import type { Crash, EngineProcess } from "../src/api/types";
import { en } from "../src/i18n/en";
import { zh } from "../src/i18n/zh";
import { crashWords, processWords } from "../src/logic/engines";

const crash = (values: Partial<Crash> = {}): Crash => ({ at: 0, exit_status: 2, was_ready: false, pause_s: 4, over_at: null, ...values });
const process = (values: Partial<EngineProcess>): EngineProcess => ({
  phase: "starting",
  detail: "starting",
  step: "loading weights",
  progress_ratio: null,
  since: 0,
  pid: 1,
  restarts: 0,
  exit_status: null,
  last_lines: [],
  taken_over: false,
  outdated: false,
  command: "",
  log: "",
  ...values,
});

describe("what a launched engine is at", () => {
  it("is the step of its start", () => {
    expect(processWords(en, process({}))).toEqual({ text: "loading weights", english: false });
    expect(processWords(zh, process({}))).toEqual({ text: "正在加载权重…", english: false });
    expect(processWords(zh, process({ step: null }))).toEqual({ text: "starting", english: true });
  });

  it("is how it ended, in values", () => {
    const ended = process({ phase: "backing_off", step: null, detail: "it ended, server", last_crash: crash() });
    expect(processWords(en, ended)).toEqual({ text: "it ended, server", english: true });
    expect(processWords(zh, ended).text).toBe("在就绪之前以退出状态 2 结束；4 秒后再次启动");
    const killed = crash({ exit_status: -9, was_ready: true, pause_s: 0 });
    expect(processWords(zh, { ...ended, last_crash: killed }).text).toBe("在运行中被信号 9 终止");
    expect(processWords(zh, { ...ended, phase: "failed" }).text).toBe("多次启动失败，已放弃；最近一次在就绪之前以退出状态 2 结束");
    // What is over says nothing of how it stands now, and where nothing ended the server's sentence is all there is.
    expect(processWords(zh, { ...ended, last_crash: crash({ over_at: 9 }) }).english).toBe(true);
    expect(processWords(zh, { ...ended, last_crash: null }).english).toBe(true);
  });
});

describe("the trace of a crash", () => {
  it("says how and when, and that it healed", () => {
    expect(crashWords(en, crash({ exit_status: 9 }))).toMatch(/^exit status 9 at /);
    expect(crashWords(en, crash({ exit_status: -9, over_at: 5 }))).toMatch(/^signal 9 at .*; started again by itself$/);
    expect(crashWords(en, crash({ exit_status: null }))).toMatch(/^exit status not known, at /);
    expect(crashWords(zh, crash({ exit_status: -9, over_at: 5 }))).toMatch(/，信号 9；已自动重新启动$/);
  });
});
