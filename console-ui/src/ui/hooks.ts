// Data that a view asks for: loaded when its address changes, and again quietly as long as the view is shown.

import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { ApiError, get } from "../api/client";
import { texts } from "../i18n";

export interface Resource<T> {
  data: T | null;
  error: string | null;
  // The server knows nothing of that address.
  missing: boolean;
  reload: () => void;
}

// path null: nothing to load. everyMs 0: once. Old data stays on the screen until newer came; an error does not remove it.
// What belongs to another address is not shown under this one, unless `keep` says that it may stand there meanwhile.
export function useResource<T>(path: string | null, everyMs = 0, keep = false): Resource<T> {
  const [state, setState] = useState<Omit<Resource<T>, "reload"> & { path: string | null }>({
    path,
    data: null,
    error: null,
    missing: false,
  });
  const [round, setRound] = useState(0);
  useEffect(() => {
    if (path === null) return;
    const abort = new AbortController();
    let timer = 0;
    const load = async (): Promise<void> => {
      try {
        const data = await get<T>(path, abort.signal);
        setState({ path, data, error: null, missing: false });
      } catch (error) {
        if (abort.signal.aborted) return;
        const missing = error instanceof ApiError && error.status === 404;
        setState((before) => ({ path, data: keep || before.path === path ? before.data : null, error: explain(error), missing }));
      }
      if (everyMs && !abort.signal.aborted) timer = window.setTimeout(() => void load(), everyMs);
    };
    void load();
    return () => {
      abort.abort();
      clearTimeout(timer);
    };
  }, [path, everyMs, round]);
  const fits = keep || state.path === path;
  return {
    data: fits ? state.data : null,
    error: fits ? state.error : null,
    missing: fits && state.missing,
    reload: () => setRound((n) => n + 1),
  };
}

export function explain(error: unknown): string {
  if (error instanceof ApiError) return error.message;
  return texts.value.common.unreachable;
}

// Width of the element that takes the ref, followed; whichever element that is just now.
export function useWidth(): [(element: HTMLDivElement | null) => void, number] {
  const [width, setWidth] = useState(0);
  const observer = useRef<ResizeObserver | null>(null);
  const ref = useCallback((element: HTMLDivElement | null) => {
    observer.current?.disconnect();
    if (!element) return;
    observer.current = new ResizeObserver((entries) => setWidth(Math.floor(entries[0]?.contentRect.width ?? 0)));
    observer.current.observe(element);
  }, []);
  return [ref, width];
}
