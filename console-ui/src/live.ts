// The live stream: one EventSource for the whole page, one snapshot a second.
//
// Age is measured with this browser's own steady clock from the moment a *newer* snapshot came in. So a viewer whose
// clock is wrong sees no false age, and a warden that has nothing newer (its data loop is stuck) is seen as old. Such a
// warden says "still" every two seconds; one that hangs says nothing, and the two are told apart by that.
//
// A connection may die without anybody's word (a laptop slept, a NAT forgot it, the warden hangs): the browser would wait
// on it for ever. So one on which nothing stirs is given up, and opened anew like one that broke.

import { computed, signal } from "@preact/signals";
import { apiUrl, loadSession, session } from "./api/client";
import type { ModelDetail, Routing, Snapshot } from "./api/types";

export const OLD_AFTER_S = 5;
// Five times as long as a warden without news is silent.
const LOST_AFTER_MS = 10_000;
const FIRST_RETRY_MS = 1000;
const LAST_RETRY_MS = 10_000;

export type Connection = "connecting" | "open" | "broken";

export const snapshot = signal<Snapshot | null>(null);
export const connection = signal<Connection>("connecting");
// Seconds since the shown snapshot came in.
export const ageS = signal(0);
export const isOld = computed(() => snapshot.value !== null && ageS.value > OLD_AFTER_S);
// Seconds since the warden said anything.
export const silentS = signal(0);
// Nothing comes, and nobody said that the connection is broken.
export const isSilent = signal(false);
// Version of the warden when the page was loaded, and when it last answered.
export const firstVersion = signal<string | null>(null);

let arrivedAt = 0;
let heardAt = 0;
// The last sign of life of the connection itself: a message, or that it was opened, came about or failed.
let stirredAt = 0;
let source: EventSource | null = null;
let retryMs = FIRST_RETRY_MS;
let retryTimer = 0;

// The warden said something, new or not.
export function hear(nowMs: number): void {
  heardAt = stirredAt = nowMs;
  silentS.value = 0;
  isSilent.value = false;
}

export function receive(next: Snapshot, nowMs: number): void {
  hear(nowMs);
  if (snapshot.value === null || next.taken_at !== snapshot.value.taken_at) {
    arrivedAt = nowMs;
    ageS.value = 0;
  }
  snapshot.value = next;
}

export function startLive(): void {
  firstVersion.value ??= session.value?.version ?? null;
  if (source) return;
  open();
}

export function stopLive(): void {
  clearTimeout(retryTimer);
  source?.close();
  source = null;
  snapshot.value = null;
  connection.value = "connecting";
}

// Once a second, from main: the age moves on although nothing arrives, which is what it is for.
export function tickAge(nowMs: number): void {
  if (snapshot.value !== null) {
    ageS.value = Math.floor((nowMs - arrivedAt) / 1000);
    silentS.value = Math.floor((nowMs - heardAt) / 1000);
    if (connection.value === "open" && silentS.value > OLD_AFTER_S) isSilent.value = true;
  }
  if (source && nowMs - stirredAt > LOST_AFTER_MS) lose(source);
}

function open(): void {
  const stream = new EventSource(apiUrl("/api/events"));
  source = stream;
  stirredAt = performance.now();
  stream.addEventListener("open", () => {
    stirredAt = performance.now();
    if (connection.value === "broken") void loadSession().catch(() => undefined);
    connection.value = "open";
    retryMs = FIRST_RETRY_MS;
  });
  stream.addEventListener("snapshot", (event) => {
    receive(JSON.parse((event as MessageEvent<string>).data) as Snapshot, performance.now());
  });
  stream.addEventListener("still", () => hear(performance.now()));
  stream.addEventListener("error", () => {
    stirredAt = performance.now();
    isSilent.value = false;
    connection.value = "broken";
    // The browser tries again by itself only while the state is CONNECTING; after an answer such as 401 or 502 it gives up.
    if (stream.readyState === EventSource.CLOSED) lose(stream);
  });
}

function lose(stream: EventSource): void {
  stream.close();
  source = null;
  connection.value = "broken";
  // Where it says that somebody must sign in, the page stops the stream.
  void loadSession().catch(() => undefined);
  clearTimeout(retryTimer);
  retryTimer = window.setTimeout(open, retryMs);
  retryMs = Math.min(retryMs * 2, LAST_RETRY_MS);
}

export function modelOf(name: string): ModelDetail | null {
  return snapshot.value?.models.find((model) => model.name === name) ?? null;
}

// A change answers with the new state: show it at once, without waiting for the next snapshot.
export function replaceRouting(name: string, routing: Routing): void {
  const current = snapshot.value;
  if (!current) return;
  const models = current.models.map((model) => (model.name === name ? { ...model, routing } : model));
  snapshot.value = { ...current, models };
}
