// One way to ask the console. Every failure is an ApiError with a sentence: the server's own where there is one.

import { signal } from "@preact/signals";
import type { Session } from "./types";

export class ApiError extends Error {
  constructor(
    readonly status: number,
    sentence: string,
    readonly retryAfterS: number | null = null,
  ) {
    super(sentence);
  }
}

// null: not asked yet.
export const session = signal<Session | null>(null);

const BASE = document.baseURI;
// A connection that died without a word would keep a page waiting for as long as the browser believes in it.
const READ_LIMIT_MS = 20_000;

export function apiUrl(path: string): string {
  return new URL(path.replace(/^\//, ""), BASE).toString();
}

export function query(values: Record<string, string | number | null | undefined>): string {
  const parts = Object.entries(values)
    .filter(([, value]) => value !== null && value !== undefined && value !== "")
    .map(([name, value]) => `${name}=${encodeURIComponent(String(value))}`);
  return parts.length ? `?${parts.join("&")}` : "";
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  const limit = AbortSignal.timeout(READ_LIMIT_MS);
  return ask<T>("GET", path, undefined, signal ? AbortSignal.any([signal, limit]) : limit);
}

export async function change<T>(method: "POST" | "PATCH" | "DELETE", path: string, body: object = {}): Promise<T> {
  return ask<T>(method, path, body);
}

async function ask<T>(method: string, path: string, body?: object, signal?: AbortSignal): Promise<T> {
  const headers: Record<string, string> = { Accept: "application/json" };
  const init: RequestInit = { method, headers, credentials: "same-origin", cache: "no-store" };
  if (signal) init.signal = signal;
  if (body !== undefined) {
    headers["Content-Type"] = "application/json";
    const csrf = session.value?.csrf;
    if (csrf) headers["X-CSRF-Token"] = csrf;
    init.body = JSON.stringify(body);
  }
  const response = await fetch(apiUrl(path), init);
  const text = await response.text();
  if (!response.ok) {
    // Signed out meanwhile (the session ended, the password was changed): the sign-in shows itself.
    if (response.status === 401 && session.value?.signed_in) session.value = { ...session.value, signed_in: false, csrf: null };
    const wait = Number(response.headers.get("Retry-After"));
    throw new ApiError(response.status, sentence(text) ?? `HTTP ${response.status}`, Number.isFinite(wait) && wait > 0 ? wait : null);
  }
  return (text ? JSON.parse(text) : undefined) as T;
}

function sentence(text: string): string | null {
  try {
    const error = (JSON.parse(text) as { error?: unknown }).error;
    return typeof error === "string" ? error : null;
  } catch {
    return null;
  }
}

export async function loadSession(): Promise<void> {
  session.value = await get<Session>("/api/session");
}

export const mayChange = (): boolean => session.value?.may_change ?? false;
