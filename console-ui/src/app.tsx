// The frame: navigation, the state of the connection, and the page that the address names.

import { useEffect, useRef, useState } from "preact/hooks";
import { change, loadSession, session } from "./api/client";
import { count, span } from "./format";
import { texts } from "./i18n";
import { ageS, connection, firstVersion, isOld, isSilent, silentS, snapshot, startLive, stopLive } from "./live";
import { Breakers } from "./pages/breakers";
import { Checks } from "./pages/checks";
import { Connect } from "./pages/connect";
import { ConversationPage } from "./pages/conversation";
import { Conversations } from "./pages/conversations";
import { Keys } from "./pages/keys";
import { Logs } from "./pages/logs";
import { ModelPage } from "./pages/model/page";
import { Overview, STATE_TONE } from "./pages/overview";
import { Requests } from "./pages/requests";
import { Settings } from "./pages/settings";
import { SignIn } from "./pages/sign-in";
import { Stats } from "./pages/stats";
import { lang, theme, type Lang, type Theme } from "./prefs";
import { href, route } from "./route";
import { Button, Dot, Note, Select, type Tone } from "./ui/basics";
import { NewsBar } from "./ui/dialog";

export function App() {
  const who = session.value;
  const locked = who !== null && who.sign_in && !who.signed_in;
  useEffect(() => {
    if (who === null) return;
    if (locked) stopLive();
    else startLive();
  }, [who === null, locked]);
  return (
    <div class={`frame ${locked ? "locked" : ""}`}>
      <a class="skip" href="#main" onClick={skip}>
        {texts.value.common.skip}
      </a>
      <Side locked={locked} />
      <div class="content">
        <Banner />
        <main id="main" tabIndex={-1}>
          {who !== null && (locked ? <SignIn /> : <View />)}
          {who === null && connection.value === "broken" && <Note tone="fault">{texts.value.common.unreachable}</Note>}
        </main>
      </div>
      <NewsBar />
    </div>
  );
}

// The address after '#' names the page, so a plain link to #main would leave it.
function skip(event: Event): void {
  event.preventDefault();
  document.getElementById("main")?.focus();
}

function View() {
  const { parts } = route.value;
  const place = parts.join("/");
  const first = useRef(true);
  // A new page begins at its top, and its heading is where a keyboard or a screen reader goes on.
  useEffect(() => {
    if (!first.current) {
      scrollTo(0, 0);
      document.getElementById("page-heading")?.focus();
    }
    first.current = false;
  }, [place]);
  const [page, name, more] = parts;
  switch (page) {
    case "models":
      return name ? <ModelPage key={name} name={name} /> : <Nowhere />;
    case "engines":
      return name && more === "logs" ? <Logs key={name} engine={name} /> : <Nowhere />;
    case "stats":
      return <Stats />;
    case "conversations":
      return name ? <ConversationPage key={name} id={name} /> : <Conversations />;
    case "breakers":
      return <Breakers />;
    case "requests":
      return <Requests />;
    case "connect":
      return <Connect />;
    case "keys":
      return <Keys />;
    case "settings":
      return <Settings />;
    case "checks":
      return <Checks />;
    case undefined:
      return <Overview />;
    default:
      return <Nowhere />;
  }
}

function Nowhere() {
  return (
    <>
      <Note tone="info">{texts.value.common.nowhere}</Note>
      <Overview />
    </>
  );
}

function Side(props: { locked: boolean }) {
  const words = texts.value;
  const [open, setOpen] = useState(false);
  const here = route.value.parts.join("/");
  useEffect(() => setOpen(false), [here]);
  return (
    <header class="side">
      <div class="side-top">
        <a class="brand" href="#/">
          <svg viewBox="0 0 32 32" width="22" height="22" aria-hidden="true">
            <path
              d="M3 16h9c6 0 5-9 12-9M12 16h12M12 16c6 0 5 9 12 9"
              fill="none"
              stroke="currentColor"
              stroke-width="3"
              stroke-linecap="round"
            />
            <circle cx="26" cy="7" r="3.5" class="brand-dot" />
          </svg>
          LM Warden
        </a>
        <Live />
        {!props.locked && (
          <button type="button" class="button plain menu-button" aria-expanded={open} aria-controls="menu" onClick={() => setOpen(!open)}>
            {words.common.menu}
          </button>
        )}
      </div>
      <div class={`side-rest ${open ? "open" : ""}`} id="menu">
        {!props.locked && <Navigation />}
        <Preferences />
      </div>
    </header>
  );
}

function Navigation() {
  const words = texts.value.nav;
  const [page, name] = route.value.parts;
  const model = route.value.query.get("model");
  const keep = model ? { model } : {};
  const link = (key: string, label: string, parts: string[], query: Record<string, string> = {}) => (
    <li key={key}>
      <a href={href(parts, query)} aria-current={(page ?? "") === (parts[0] ?? "") ? "page" : undefined}>
        {label}
      </a>
    </li>
  );
  return (
    <nav aria-label={words.main}>
      <ul>
        {link("overview", words.overview, [])}
        {snapshot.value?.overview.models.map((entry) => (
          <li key={`model ${entry.name}`} class="nav-model">
            <a href={href(["models", entry.name])} aria-current={page === "models" && name === entry.name ? "page" : undefined}>
              <Dot tone={STATE_TONE[entry.state]} /> {entry.name}
              <span class="hidden">: {texts.value.state.model[entry.state]}</span>
            </a>
          </li>
        ))}
        {link("stats", words.stats, ["stats"], keep)}
        {link("conversations", words.conversations, ["conversations"], keep)}
        {link("breakers", words.breakers, ["breakers"], keep)}
        {link("requests", words.requests, ["requests"], keep)}
        {link("connect", words.connect, ["connect"], keep)}
        {link("keys", words.keys, ["keys"])}
        {link("settings", words.settings, ["settings"])}
        {link("checks", words.checks, ["checks"])}
      </ul>
    </nav>
  );
}

function Preferences() {
  const words = texts.value;
  const signOut = async (): Promise<void> => {
    await change("DELETE", "/api/session").catch(() => undefined);
    await loadSession().catch(() => undefined);
  };
  const themes = (["system", "light", "dark"] as const).map((value) => ({ value: value as Theme, label: words.theme[value] }));
  const langs: { value: Lang; label: string }[] = [
    { value: "en", label: "English" },
    { value: "zh", label: "简体中文" },
  ];
  return (
    <div class="prefs">
      <Select hideLabel label={words.lang.label} value={lang.value} options={langs} onChange={(value) => (lang.value = value)} />
      <Select hideLabel label={words.theme.label} value={theme.value} options={themes} onChange={(value) => (theme.value = value)} />
      {session.value?.sign_in && session.value.signed_in && <Button onClick={() => void signOut()}>{words.nav.signOut}</Button>}
      {session.value && <span class="version">{session.value.version}</span>}
    </div>
  );
}

function Live() {
  const words = texts.value.live;
  if (session.value === null || (session.value.sign_in && !session.value.signed_in)) return null;
  const old = isOld.value;
  const tone: Tone = connection.value === "broken" ? "fault" : old ? "warning" : connection.value === "open" ? "ok" : "info";
  const text = connection.value === "broken" ? words.broken : old ? words.old(span(ageS.value)) : words[connection.value];
  return (
    <span class={`live ${tone}`} data-connection={connection.value} data-old={old}>
      <Dot tone={tone} /> {text}
    </span>
  );
}

// What the whole page suffers from stands above it: the figures below are old, or the page itself is.
function Banner() {
  const words = texts.value.live;
  const updated = firstVersion.value !== null && session.value !== null && session.value.version !== firstVersion.value;
  const broken = connection.value === "broken";
  const age = span(ageS.value);
  return (
    <div role="status" class="banner">
      {isOld.value && (
        <Note tone={broken || isSilent.value ? "fault" : "warning"}>
          {isSilent.value ? words.silentLong(span(silentS.value)) : broken ? words.brokenLong(age) : words.stuckLong(age)}
        </Note>
      )}
      {session.value !== null && session.value.speed > 1 && <Note tone="info">{words.simulated(count(session.value.speed))}</Note>}
      {updated && (
        <Note tone="info">
          {words.updated(session.value!.version)} <Button onClick={() => location.reload()}>{words.reload}</Button>
        </Note>
      )}
    </div>
  );
}
