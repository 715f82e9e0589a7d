// Builds the page's program and style into the Python package: one file each, the same bytes every time.
// It contains no code of other projects: what it uses is here and in the browser.
import { build } from "esbuild";

const root = new URL("../snapconv/writers/html/", import.meta.url).pathname;
const target = process.argv[2] ?? root;
const banner = { js: "/* snapconv view: MIT licence. Built from web/ by scripts/build_view. */" };
const common = { bundle: true, minify: true, target: ["es2022"], charset: "utf8", legalComments: "none", logLevel: "warning" };

await build({ ...common, entryPoints: ["src/main.ts"], outfile: `${target}/page.js`, format: "iife", banner });
await build({ ...common, entryPoints: ["src/page.css"], outfile: `${target}/page.css` });
