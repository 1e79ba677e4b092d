// The built page must be the same bytes on every machine, because it is committed and CI compares it with a fresh build:
// versions are pinned, names carry no hash, and nothing of the machine or the time goes in.
// It is one script and one style sheet: a chunk that loads later could come from a newer warden than the page that asks for it.
import { readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { gzipSync } from "node:zlib";
import type { Plugin } from "vite";
import { defineConfig } from "vitest/config";

const OUT = process.env["CONSOLE_OUT"] ?? "../src/lmwarden/console/static";
const LIMIT_BYTES = 100 * 1024;

// What a first visit costs, as the console sends it (gzip). Too much fails the build.
function weight(): Plugin {
  return {
    name: "weight",
    apply: "build",
    closeBundle() {
      const files = ["index.html", "console.js", "console.css", "favicon.svg"].map((name) => join(resolve(import.meta.dirname, OUT), name));
      const sizes = files.map((file) => gzipSync(readFileSync(file), { level: 9 }).length);
      const total = sizes.reduce((sum, size) => sum + size, 0);
      console.log(`first load: ${(total / 1024).toFixed(1)} KiB compressed (limit ${LIMIT_BYTES / 1024} KiB)`);
      if (total > LIMIT_BYTES) throw new Error("the page is too heavy");
    },
  };
}

export default defineConfig({
  base: "./",
  build: {
    outDir: OUT,
    emptyOutDir: true,
    target: ["chrome123", "firefox128", "safari17.5"],
    modulePreload: false,
    cssCodeSplit: false,
    reportCompressedSize: false,
    rolldownOptions: {
      output: {
        entryFileNames: "console.js",
        chunkFileNames: "[name].js",
        assetFileNames: (asset) => (asset.names.some((name) => name.endsWith(".css")) ? "console.css" : "[name][extname]"),
      },
    },
  },
  plugins: [weight()],
  // No test is about how long it takes; a busy machine is no fault.
  test: { include: ["tests/**/*.test.ts"], setupFiles: ["tests/setup.ts"], testTimeout: 60_000, hookTimeout: 60_000 },
});
