import { afterEach, describe, expect, it, vi } from "vitest";
import { get } from "../src/api/client";

afterEach(() => {
  vi.restoreAllMocks();
  vi.unstubAllGlobals();
});

describe("a question", () => {
  it("does not wait for ever on a connection that died without a word", async () => {
    const limit = new AbortController();
    vi.spyOn(AbortSignal, "timeout").mockReturnValue(limit.signal);
    const never = (_: string, init: RequestInit): Promise<Response> =>
      new Promise((_, reject) => init.signal!.addEventListener("abort", () => reject(init.signal!.reason)));
    vi.stubGlobal("fetch", never);
    const answers = [get("/api/keys"), get("/api/keys", new AbortController().signal)];
    limit.abort(new Error("time is up"));
    for (const answer of answers) await expect(answer).rejects.toThrow("time is up");
  });
});
