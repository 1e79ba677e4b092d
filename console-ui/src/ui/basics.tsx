// The small parts that every page is made of.

import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { texts } from "../i18n";

export type Tone = "ok" | "warning" | "fault" | "quiet" | "info";

export function PageTitle(props: { children: ComponentChildren; aside?: ComponentChildren; title: string }) {
  const heading = useRef<HTMLHeadingElement>(null);
  useEffect(() => {
    document.title = `${props.title} · LM Warden`;
  }, [props.title]);
  return (
    <div class="page-title">
      <h1 tabIndex={-1} ref={heading} id="page-heading">
        {props.children}
      </h1>
      {props.aside && <div class="page-aside">{props.aside}</div>}
    </div>
  );
}

export function Card(props: {
  title?: ComponentChildren;
  aside?: ComponentChildren;
  children: ComponentChildren;
  class?: string;
  level?: 2 | 3;
}) {
  const id = useId();
  const Heading = props.level === 3 ? "h3" : "h2";
  return (
    <section class={`card ${props.class ?? ""}`} aria-labelledby={props.title ? id : undefined}>
      {(props.title || props.aside) && (
        <header class="card-head">
          {props.title && <Heading id={id}>{props.title}</Heading>}
          {props.aside && <div class="card-aside">{props.aside}</div>}
        </header>
      )}
      {props.children}
    </section>
  );
}

export function Button(props: {
  children: ComponentChildren;
  onClick?: () => void;
  kind?: "plain" | "primary" | "danger" | "link";
  disabled?: boolean;
  label?: string;
  title?: string;
  type?: "button" | "submit";
  pressed?: boolean;
}) {
  return (
    <button
      type={props.type ?? "button"}
      class={`button ${props.kind ?? "plain"}`}
      disabled={props.disabled ?? false}
      aria-label={props.label}
      aria-pressed={props.pressed}
      title={props.title}
      onClick={props.onClick}
    >
      {props.children}
    </button>
  );
}

export function Dot(props: { tone: Tone }) {
  return <span class={`dot ${props.tone}`} aria-hidden="true" />;
}

export function Badge(props: { tone?: Tone | "cached" | "computed"; children: ComponentChildren; title?: string }) {
  return (
    <span class={`badge ${props.tone ?? "quiet"}`} title={props.title}>
      {props.children}
    </span>
  );
}

export function Switch(props: { on: boolean; label: string; onChange: (on: boolean) => void; disabled?: boolean }) {
  return (
    <button
      type="button"
      role="switch"
      class="switch"
      aria-checked={props.on}
      disabled={props.disabled ?? false}
      onClick={() => props.onChange(!props.on)}
    >
      <span class="switch-track" aria-hidden="true">
        <span class="switch-knob" />
      </span>
      {props.label}
    </button>
  );
}

export interface Option<T extends string> {
  value: T;
  label: string;
}

export function Select<T extends string>(props: {
  label: string;
  value: T;
  options: readonly Option<T>[];
  onChange: (value: T) => void;
  hideLabel?: boolean;
  disabled?: boolean;
}) {
  return (
    <label class="field">
      <span class={props.hideLabel ? "hidden" : "field-label"}>{props.label}</span>
      <select value={props.value} disabled={props.disabled ?? false} onChange={(event) => props.onChange(event.currentTarget.value as T)}>
        {props.options.map((option) => (
          <option key={option.value} value={option.value} selected={option.value === props.value}>
            {option.label}
          </option>
        ))}
      </select>
    </label>
  );
}

// A few choices beside each other, one of them taken: radio buttons that look like one bar.
export function Segmented<T extends string>(props: {
  label: string;
  value: T;
  options: readonly Option<T>[];
  onChange: (value: T) => void;
  disabled?: boolean;
  showLabel?: boolean;
}) {
  const name = useId();
  return (
    <fieldset class="segmented-set" disabled={props.disabled ?? false}>
      <legend class={props.showLabel ? "field-label" : "hidden"}>{props.label}</legend>
      <div class="segmented">
        {props.options.map((option) => (
          <label key={option.value} class={option.value === props.value ? "chosen" : ""}>
            <input
              type="radio"
              name={name}
              value={option.value}
              checked={option.value === props.value}
              onChange={() => props.onChange(option.value)}
            />
            {option.label}
          </label>
        ))}
      </div>
    </fieldset>
  );
}

// A ratio as a bar, with its words beside it; null: not known.
export function Meter(props: {
  ratio: number | null;
  text: string;
  label: string;
  tone?: "blue" | "amber" | "red" | "auto";
  wide?: boolean;
}) {
  const ratio = props.ratio;
  const tone =
    props.tone === "auto" || !props.tone
      ? ratio !== null && ratio > 1
        ? "red"
        : ratio !== null && ratio > 0.9
          ? "amber"
          : "blue"
      : props.tone;
  return (
    <span class={`meter ${props.wide ? "wide" : ""}`}>
      {ratio !== null && (
        <span class="meter-bar" role="img" aria-label={texts.value.common.labelled(props.label, props.text)}>
          <span class={`meter-fill ${tone}`} style={{ width: `${Math.min(100, Math.max(0, ratio * 100))}%` }} />
        </span>
      )}
      <span class="meter-text">{props.text}</span>
    </span>
  );
}

export function CopyButton(props: { text: string; label?: string }) {
  const [copied, setCopied] = useState(false);
  const words = texts.value.common;
  const copy = async (): Promise<void> => {
    if (!(await toClipboard(props.text))) return;
    setCopied(true);
    setTimeout(() => setCopied(false), 2000);
  };
  return (
    <Button onClick={() => void copy()} {...(props.label ? { label: props.label } : {})}>
      <span aria-live="polite">{copied ? words.copied : words.copy}</span>
    </Button>
  );
}

// The clipboard of the browser is there on secure origins only; a console reached by plain HTTP takes the old way.
async function toClipboard(text: string): Promise<boolean> {
  if (navigator.clipboard) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      /* not allowed: the other way */
    }
  }
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "hidden";
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
}

export function Note(props: { tone: Tone; children: ComponentChildren; role?: "alert" | "status" }) {
  return (
    <div class={`note ${props.tone}`} role={props.role}>
      {props.children}
    </div>
  );
}

export function LoadError(props: { error: string | null; retry: () => void }) {
  if (!props.error) return null;
  return (
    <Note tone="warning" role="alert">
      <span>{texts.value.common.failed(props.error)}</span> <Button onClick={props.retry}>{texts.value.common.retry}</Button>
    </Note>
  );
}

export function Empty(props: { children: ComponentChildren }) {
  return <p class="empty">{props.children}</p>;
}

// Text of a server that speaks English only.
export function English(props: { children: string }) {
  return <span lang="en">{props.children}</span>;
}

// A box that scrolls must be reachable by keyboard.
export function Scroll(props: { label: string; children: ComponentChildren; class?: string }) {
  return (
    <div class={`scroll ${props.class ?? ""}`} role="group" aria-label={props.label} tabIndex={0}>
      {props.children}
    </div>
  );
}
