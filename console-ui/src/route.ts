// Where the page is: the part of the address after '#'. The server then serves one document, and every view can be
// bookmarked and sent to somebody.

import { signal } from "@preact/signals";

export interface Route {
  // Decoded parts of the path: "#/models/a%2Fb/connect" is ["models", "a/b", "connect"].
  parts: string[];
  query: URLSearchParams;
}

export function parseHash(hash: string): Route {
  const [path = "", search = ""] = hash.replace(/^#/, "").split("?", 2);
  const parts = path.split("/").filter(Boolean).map(decode);
  return { parts, query: new URLSearchParams(search) };
}

function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export function href(parts: readonly string[], query: Record<string, string | null | undefined> = {}): string {
  const set = Object.entries(query).filter((entry): entry is [string, string] => Boolean(entry[1]));
  const search = new URLSearchParams(set).toString();
  return `#/${parts.map(encodeURIComponent).join("/")}${search ? `?${search}` : ""}`;
}

export const route = signal<Route>(parseHash(location.hash));

export function watchRoute(): void {
  addEventListener("hashchange", () => {
    route.value = parseHash(location.hash);
  });
}

// Changes the query of the view that is shown, without a step in the history: filters are not places.
export function setQuery(values: Record<string, string | null>): void {
  const query: Record<string, string | null> = Object.fromEntries(route.value.query);
  history.replaceState(null, "", href(route.value.parts, { ...query, ...values }));
  route.value = parseHash(location.hash);
}
