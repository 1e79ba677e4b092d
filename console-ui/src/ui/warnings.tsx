// Warnings in plain words, with what to do.

import type { Warning } from "../api/types";
import { texts } from "../i18n";
import { warningWords } from "../logic/words";
import { English } from "./basics";

export function Warnings(props: { warnings: readonly Warning[] }) {
  const words = texts.value.overview;
  return (
    <ul class="warnings">
      {props.warnings.map((warning, index) => {
        const { title, text, english, todo } = warningWords(texts.value, warning);
        const sentence = english ? <English>{text}</English> : text;
        const fault = warning.level === "fault";
        return (
          <li key={`${warning.code}${index}`} class={`note ${fault ? "fault" : "warning"}`}>
            <strong>
              <span class="warning-level">{fault ? words.fault : words.warning}</span> {title || sentence}
            </strong>
            {title && <span class="warning-text">{sentence}</span>}
            {todo && <span class="warning-todo">→ {todo}</span>}
          </li>
        );
      })}
    </ul>
  );
}
