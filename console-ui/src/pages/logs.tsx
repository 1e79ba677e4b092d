// The end of an engine's log: followed, searched, downloaded.

import { useEffect, useRef, useState } from "preact/hooks";
import { apiUrl, query } from "../api/client";
import { texts } from "../i18n";
import { snapshot } from "../live";
import { href } from "../route";
import { Empty, LoadError, PageTitle, Select } from "../ui/basics";
import { useResource } from "../ui/hooks";

const REFRESH_MS = 2000;
const TYPING_MS = 300;
const LINES = ["100", "200", "500"] as const;

export function Logs(props: { engine: string }) {
  const words = texts.value;
  const [lines, setLines] = useState<(typeof LINES)[number]>("200");
  const [typed, setTyped] = useState("");
  const [search, setSearch] = useState("");
  const [follow, setFollow] = useState(true);
  useEffect(() => {
    const timer = window.setTimeout(() => setSearch(typed.trim()), TYPING_MS);
    return () => clearTimeout(timer);
  }, [typed]);
  const path = `/api/engines/${encodeURIComponent(props.engine)}/logs`;
  const engine = snapshot.value?.models.flatMap((model) => model.engines).find((other) => other.engine === props.engine);
  const launched = engine?.launched !== false;
  const { data, error, reload } = useResource<{ lines: string[] }>(
    launched ? path + query({ lines, search }) : null,
    follow ? REFRESH_MS : 0,
    true,
  );
  return (
    <>
      <PageTitle title={words.logs.title(props.engine)}>{words.logs.title(props.engine)}</PageTitle>
      {engine && (
        <p class="subtitle">
          <a href={href(["models", engine.model])}>{engine.model}</a>
        </p>
      )}
      {!launched ? (
        <Empty>{words.logs.none}</Empty>
      ) : (
        <>
          <div class="filters">
            <label class="field">
              <span class="field-label">{words.logs.search}</span>
              <input
                type="search"
                value={typed}
                placeholder={words.logs.searchHint}
                onInput={(event) => setTyped(event.currentTarget.value)}
              />
            </label>
            <Select label={words.logs.lines} value={lines} options={LINES.map((value) => ({ value, label: value }))} onChange={setLines} />
            <label class="check">
              <input type="checkbox" checked={follow} onChange={(event) => setFollow(event.currentTarget.checked)} /> {words.logs.follow}
            </label>
            <a class="button plain" href={apiUrl(path + query({ download: "1", search }))} download={`${props.engine}.log`}>
              {words.logs.download}
            </a>
          </div>
          <LoadError error={error} retry={reload} />
          {data && <Lines lines={data.lines} follow={follow} />}
        </>
      )}
    </>
  );
}

function Lines(props: { lines: string[]; follow: boolean }) {
  const box = useRef<HTMLPreElement>(null);
  useEffect(() => {
    if (props.follow && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [props.lines, props.follow]);
  const words = texts.value.logs;
  if (props.lines.length === 0) return <Empty>{words.empty}</Empty>;
  return (
    <pre class="log" ref={box} tabIndex={0} aria-label={words.label} role="log" lang="en">
      {props.lines.join("\n")}
    </pre>
  );
}
