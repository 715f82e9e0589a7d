// Bundles the tests of web/test, which are TypeScript, into a folder, and runs them with Node's own runner.
import { readdirSync } from "node:fs";
import { spawnSync } from "node:child_process";
import { build } from "esbuild";

const folder = process.argv[2];
const tests = readdirSync("test").filter((name) => name.endsWith(".test.ts"));
await build({
  entryPoints: tests.map((name) => `test/${name}`),
  outdir: folder,
  bundle: true,
  platform: "node",
  format: "esm",
  outExtension: { ".js": ".mjs" },
  logLevel: "warning",
});
const files = tests.map((name) => `${folder}/${name.replace(/ts$/, "mjs")}`);
process.exit(spawnSync(process.execPath, ["--test", "--test-reporter=dot", ...files], { stdio: "inherit" }).status ?? 1);
