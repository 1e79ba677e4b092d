import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import type { Snapshot } from "../src/api/types";
import { connection, isOld, isSilent, startLive, stopLive, tickAge } from "../src/live";

class Stream extends EventTarget {
  static readonly CLOSED = 2;
  static opened: Stream[] = [];
  readyState = 0;
  constructor() {
    super();
    Stream.opened.push(this);
  }
  close(): void {
    this.readyState = Stream.CLOSED;
  }
  open(): void {
    this.readyState = 1;
    this.dispatchEvent(new Event("open"));
  }
  tells(takenAt: number): void {
    this.dispatchEvent(new MessageEvent("snapshot", { data: JSON.stringify({ taken_at: takenAt } as Snapshot) }));
  }
  // As the browser tells it: it tries again by itself, or has given up.
  fails(readyState: number): void {
    this.readyState = readyState;
    this.dispatchEvent(new Event("error"));
  }
}

const latest = (): Stream => Stream.opened.at(-1)!;

// Time passes, and once a second the page looks.
async function pass(seconds: number, each: (second: number) => void = () => undefined): Promise<void> {
  for (let second = 1; second <= seconds; second++) {
    await vi.advanceTimersByTimeAsync(1000);
    each(second);
    tickAge(performance.now());
  }
}

beforeEach(() => {
  vi.useFakeTimers();
  vi.stubGlobal("window", globalThis);
  vi.stubGlobal("EventSource", Stream);
  vi.stubGlobal("fetch", () => Promise.reject(new TypeError("Failed to fetch")));
  Stream.opened = [];
  startLive();
});

afterEach(() => {
  stopLive();
  vi.unstubAllGlobals();
  vi.useRealTimers();
});

describe("the live stream", () => {
  it("is kept while the warden says that there is nothing new", async () => {
    latest().open();
    latest().tells(1);
    await pass(60, (second) => second % 2 || latest().dispatchEvent(new Event("still")));
    expect([Stream.opened.length, connection.value, isOld.value, isSilent.value]).toEqual([1, "open", true, false]);
  });

  it("is opened anew when nothing comes on it for ten seconds", async () => {
    const first = latest();
    first.open();
    first.tells(1);
    await pass(10);
    expect([Stream.opened.length, connection.value, isSilent.value]).toEqual([1, "open", true]);
    await pass(1);
    expect([first.readyState, connection.value, isSilent.value]).toEqual([Stream.CLOSED, "broken", true]);
    await pass(1);
    expect(Stream.opened.length).toBe(2);
    latest().open();
    latest().tells(2);
    expect([connection.value, isOld.value, isSilent.value]).toEqual(["open", false, false]);
  });

  it("is tried again after growing pauses where nobody answers", async () => {
    const opened: number[] = [];
    await pass(80, (second) => Stream.opened.length > opened.length + 1 && opened.push(second));
    expect(opened).toEqual([12, 25, 40, 59, 80]);
  });

  it("is left to the browser while that tries again and is refused", async () => {
    latest().open();
    latest().tells(1);
    await pass(60, (second) => second % 3 || latest().fails(0));
    expect([Stream.opened.length, connection.value, isSilent.value]).toEqual([1, "broken", false]);
    latest().fails(Stream.CLOSED);
    await pass(1);
    expect(Stream.opened.length).toBe(2);
  });
});
