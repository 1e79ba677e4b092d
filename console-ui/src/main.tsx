import { render } from "preact";
import { effect } from "@preact/signals";
import "uplot/dist/uPlot.min.css";
import "./style/base.css";
import "./style/parts.css";
import "./style/pages.css";
import { loadSession } from "./api/client";
import { App } from "./app";
import { connection, isOld, tickAge } from "./live";
import { applyPrefs } from "./prefs";
import { watchRoute } from "./route";

const RETRY_MS = 2000;

async function firstSession(): Promise<void> {
  try {
    await loadSession();
  } catch {
    connection.value = "broken";
    setTimeout(() => void firstSession(), RETRY_MS);
  }
}

applyPrefs();
watchRoute();
render(<App />, document.getElementById("app")!);
void firstSession();
setInterval(() => tickAge(performance.now()), 1000);
// Old figures are greyed wherever they stand.
effect(() => document.body.classList.toggle("old-data", isOld.value) as unknown as void);
