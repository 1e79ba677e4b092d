// A list from the API: the first page is asked for again and again, further pages when the end comes into view.

import { useEffect, useRef, useState } from "preact/hooks";
import { get, query } from "../api/client";
import type { Page } from "../api/types";
import { append, merge } from "../logic/paging";
import { explain } from "./hooks";

const PAGE_ROWS = 100;
const MOST_ROWS = 10_000;
// A pointer that was parked on the list for long does not mean to click.
const HOLD_MS = 10_000;

export interface Paged<T> {
  rows: T[];
  total: number | null;
  more: boolean;
  loaded: boolean;
  error: string | null;
  loadMore: () => void;
  // Somebody is about to click: keep the order for a moment; false: no longer.
  hold: (held: boolean) => void;
  reload: () => void;
}

export function usePaged<T>(path: string, filters: Record<string, string>, id: (row: T) => string, everyMs: number): Paged<T> {
  const key = path + query(filters);
  const [state, setState] = useState<{ key: string; rows: T[]; next: string | null; total: number | null; error: string | null }>({
    key: "",
    rows: [],
    next: null,
    total: null,
    error: null,
  });
  const [round, setRound] = useState(0);
  const heldUntil = useRef(0);
  const busy = useRef(false);
  useEffect(() => {
    const abort = new AbortController();
    let timer = 0;
    const refresh = async (): Promise<void> => {
      try {
        const page = await get<Page<T>>(path + query({ ...filters, limit: PAGE_ROWS }), abort.signal);
        setState((before) => {
          const same = before.key === key;
          const shown = same ? before.rows : [];
          const deeper = same && shown.length > page.items.length;
          return {
            key,
            rows: merge(shown, page.items, id, same && performance.now() < heldUntil.current),
            next: deeper ? before.next : page.next,
            total: page.total ?? null,
            error: null,
          };
        });
      } catch (error) {
        if (abort.signal.aborted) return;
        setState((before) => ({ ...before, key, rows: before.key === key ? before.rows : [], error: explain(error) }));
      }
      if (everyMs && !abort.signal.aborted) timer = window.setTimeout(() => void refresh(), everyMs);
    };
    void refresh();
    return () => {
      abort.abort();
      clearTimeout(timer);
    };
  }, [key, everyMs, round]);

  const fits = state.key === key;
  const loadMore = async (): Promise<void> => {
    const before = fits ? state.next : null;
    if (!before || busy.current || state.rows.length >= MOST_ROWS) return;
    busy.current = true;
    try {
      const page = await get<Page<T>>(path + query({ ...filters, limit: PAGE_ROWS, before }));
      setState((now) => (now.key === key ? { ...now, rows: append(now.rows, page.items, id), next: page.next } : now));
    } catch (error) {
      setState((now) => ({ ...now, error: explain(error) }));
    } finally {
      busy.current = false;
    }
  };
  return {
    rows: fits ? state.rows : [],
    total: fits ? state.total : null,
    more: fits && state.next !== null,
    loaded: fits,
    error: fits ? state.error : null,
    loadMore: () => void loadMore(),
    hold: (value) => {
      heldUntil.current = value ? performance.now() + HOLD_MS : 0;
    },
    reload: () => setRound((n) => n + 1),
  };
}
