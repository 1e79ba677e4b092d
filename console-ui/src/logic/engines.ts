// How a launched engine stands, in words.

import type { Crash, EngineProcess, Params } from "../api/types";
import { count, when } from "../format";
import type { Texts } from "../i18n/en";
import { filled } from "./words";

// What it is at, or why it does not run; the server's own sentence where there is no translation.
export function processWords(texts: Texts, process: EngineProcess): { text: string; english: boolean } {
  const crash = process.last_crash?.over_at === null ? process.last_crash : null;
  const params: Params = { detail: process.detail, ...(process.step ? { step: process.step } : {}), ...(crash ? crashParams(crash) : {}) };
  const own = filled(texts, texts.processTexts[process.phase], params);
  return own === null ? { text: process.detail, english: true } : { text: own, english: false };
}

function crashParams(crash: Crash): Params {
  const status = crash.exit_status;
  return {
    when: crash.was_ready ? "running" : "starting",
    ...(status === null ? {} : status < 0 ? { signal: -status } : { exit_status: status }),
    ...(crash.pause_s ? { pause_s: crash.pause_s } : {}),
  };
}

// The trace that a crash leaves when the engine serves again.
export function crashWords(texts: Texts, crash: Crash): string {
  const words = texts.model;
  const status = crash.exit_status;
  const how = status === null ? words.ended.unknown : status < 0 ? words.ended.signal(count(-status)) : words.ended.status(count(status));
  const crashed = words.crashed(how, when(crash.at));
  return crash.over_at === null ? crashed : words.crashOver(crashed);
}
