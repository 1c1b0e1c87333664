// Bundle page.jsx with the libraries of a folder: node build.mjs FOLDER OUT.js (FOLDER holds node_modules).
import { createRequire } from 'node:module';
import path from 'node:path';

const [folder, out] = process.argv.slice(2);
const require = createRequire(path.join(folder, 'package.json'));
const { build } = require('esbuild');

await build({
  entryPoints: [path.join(import.meta.dirname, 'page.jsx')],
  outfile: out,
  bundle: true,
  format: 'esm',
  jsx: 'automatic',
  logLevel: 'error',
  nodePaths: [path.join(folder, 'node_modules')],
  loader: { '.svg': 'dataurl', '.woff2': 'dataurl', '.ttf': 'empty' },
  define: { 'process.env.NODE_ENV': '"production"', global: 'window' },
  alias: {
    // The same calls; two routers would not know each other.
    'react-router-dom-v5-compat': 'react-router-dom',
    // Their .mjs would take what older packages export for a default that it is not.
    ...Object.fromEntries(['data', 'runtime', 'ui'].map((name) => [`@grafana/${name}`, path.join(folder, `node_modules/@grafana/${name}/dist/cjs/index.cjs`)])),
  },
  plugins: [
    {
      // scenes names files of schema without their ending, which a browser's bundler must add.
      name: 'schema-files',
      setup: (made) =>
        made.onResolve({ filter: /^@grafana\/schema\/dist\/esm\/raw\/.*_types\.gen$/ }, ({ path: name }) => ({
          path: require.resolve(`${name}.js`),
        })),
    },
  ],
});
