// Questions before something that is hard to take back, and the short news of what became of a command.

import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef } from "preact/hooks";
import { texts } from "../i18n";
import { Button } from "./basics";
import { explain } from "./hooks";

export function Dialog(props: {
  title: string;
  onClose: () => void;
  children: ComponentChildren;
  actions: ComponentChildren;
  keepOpen?: boolean;
}) {
  const ref = useRef<HTMLDialogElement>(null);
  const id = useId();
  useEffect(() => {
    ref.current?.showModal();
  }, []);
  return (
    <dialog
      ref={ref}
      aria-labelledby={id}
      onCancel={(event) => {
        event.preventDefault();
        if (!props.keepOpen) props.onClose();
      }}
    >
      <h2 id={id}>{props.title}</h2>
      <div class="dialog-body">{props.children}</div>
      <div class="dialog-actions">{props.actions}</div>
    </dialog>
  );
}

export function Confirm(props: {
  title: string;
  text: string;
  action: string;
  onConfirm: () => void;
  onClose: () => void;
  extra?: ComponentChildren;
  disabled?: boolean;
}) {
  const words = texts.value.common;
  const confirm = (): void => {
    props.onClose();
    props.onConfirm();
  };
  return (
    <Dialog
      title={props.title}
      onClose={props.onClose}
      actions={
        <>
          <Button onClick={props.onClose}>{words.cancel}</Button>
          <Button kind="danger" onClick={confirm} disabled={props.disabled ?? false}>
            {props.action}
          </Button>
        </>
      }
    >
      <p>{props.text}</p>
      {props.extra}
    </Dialog>
  );
}

interface News {
  tone: "ok" | "fault";
  text: string;
}

const news = signal<News | null>(null);
let timer = 0;
const GOOD_NEWS_MS = 3000;

export function tell(tone: News["tone"], text: string): void {
  clearTimeout(timer);
  news.value = { tone, text };
  // Bad news stays until it is put away.
  if (tone === "ok") timer = window.setTimeout(() => (news.value = null), GOOD_NEWS_MS);
}

// Runs a command and says how it went. Returns whether it worked.
export async function run(command: () => Promise<unknown>, done?: string): Promise<boolean> {
  try {
    await command();
    if (done) tell("ok", done);
    return true;
  } catch (error) {
    tell("fault", texts.value.common.failed(explain(error)));
    return false;
  }
}

export function NewsBar() {
  const current = news.value;
  return (
    <div class="news" role="status" aria-live="polite">
      {current && (
        <div class={`note ${current.tone}`}>
          <span>{current.text}</span> <Button onClick={() => (news.value = null)}>{texts.value.common.close}</Button>
        </div>
      )}
    </div>
  );
}
