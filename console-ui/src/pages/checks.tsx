// What lmwarden doctor looks at.

import type { Level, Warning } from "../api/types";
import { texts } from "../i18n";
import { warningWords } from "../logic/words";
import { Badge, Button, Empty, English, LoadError, PageTitle, type Tone } from "../ui/basics";
import { useResource } from "../ui/hooks";

interface Check extends Warning {
  level: Level;
  model: string | null;
  engine: string | null;
}

const TONE: Record<Level, Tone> = { ok: "ok", warning: "warning", fault: "fault" };
const RANK: Record<Level, number> = { fault: 0, warning: 1, ok: 2 };

export function Checks() {
  const words = texts.value;
  const { data, error, reload } = useResource<{ version: string; checks: Check[] }>("/api/checks");
  const checks = [...(data?.checks ?? [])].sort((a, b) => RANK[a.level] - RANK[b.level]);
  const levels: Record<Level, string> = { ok: words.checks_page.ok, warning: words.overview.warning, fault: words.overview.fault };
  return (
    <>
      <PageTitle title={words.checks_page.title} aside={<Button onClick={reload}>{words.checks_page.again}</Button>}>
        {words.checks_page.title}
      </PageTitle>
      <p class="intro">{words.checks_page.intro}</p>
      <LoadError error={error} retry={reload} />
      {!data && !error && <Empty>{words.common.loading}</Empty>}
      {data && (
        <ul class="card checks">
          {checks.map((check, index) => {
            const { title, text, english, todo } = warningWords(words, check);
            return (
              <li key={`${check.code}${index}`}>
                <Badge tone={TONE[check.level]}>{levels[check.level]}</Badge>
                <div>
                  {title && check.level !== "ok" && <b>{title} </b>}
                  {english ? <English>{text}</English> : text}
                  {check.level !== "ok" && todo && <div class="warning-todo">→ {todo}</div>}
                </div>
                {check.model && <span class="muted">{check.model}</span>}
              </li>
            );
          })}
        </ul>
      )}
    </>
  );
}
