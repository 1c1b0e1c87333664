// The way to Prometheus: what Grafana's server does between a query and its frames.
import { from } from 'rxjs';
import { map } from 'rxjs/operators';
import { FieldType, LoadingState, createDataFrame } from '@grafana/data';
import { sceneGraph } from '@grafana/scenes';

const RATE_S = Number(new URLSearchParams(window.location.search).get('rate_s') ?? 60);
const STEP_S = Number(new URLSearchParams(window.location.search).get('step_s') ?? 1);

const plain = (value) => String(value).replace(/\\/g, '\\\\').replace(/"/g, '\\"');
const pattern = (value) => String(value).replace(/\\/g, '\\\\\\\\').replace(/[$^*{}[\]'+?.()|]/g, '\\\\$&');

// As Grafana's own data source escapes what was chosen.
function escaped(value, variable) {
  if (!variable.multi && !variable.includeAll) {
    return plain(value);
  }
  const each = (Array.isArray(value) ? value : [value]).map(pattern);
  return each.length === 1 ? each[0] : `(${each.join('|')})`;
}

function filled(text, scopedVars) {
  const object = scopedVars?.__sceneObject?.value?.valueOf();
  const ours = text.replaceAll('$__rate_interval', `${RATE_S}s`).replaceAll('offset 6h', 'offset 2s');
  return object ? sceneGraph.interpolate(object, ours, scopedVars, escaped) : ours;
}

async function asked(path, words) {
  const answer = await (await fetch(`/api/v1/${path}?${new URLSearchParams(words)}`)).json();
  if (answer.status !== 'success') {
    throw new Error(answer.error);
  }
  return answer.data;
}

const legend = (format, labels) =>
  format && format !== '__auto' ? format.replace(/\{\{\s*(\w+)\s*\}\}/g, (_, name) => labels[name] ?? '') : JSON.stringify(labels);

async function frames(target, request) {
  const query = filled(target.expr, request.scopedVars);
  if (target.instant) {
    const at = request.range.to.valueOf() / 1000;
    const { result } = await asked('query', { query, time: at });
    if (target.format === 'table') {
      return [table(target, result)];
    }
    return result.map(({ metric, value }) => frame(target, metric, [[value[0], value[1]]]));
  }
  const start = Math.floor(request.range.from.valueOf() / 1000);
  const end = Math.floor(request.range.to.valueOf() / 1000);
  const { result } = await asked('query_range', { query, start, end, step: STEP_S });
  return result.map(({ metric, values }) => frame(target, metric, gaps(values)));
}

// Grafana's server sets a null where a step has no sample.
function gaps(values) {
  const made = [];
  for (const [at, value] of values) {
    const last = made.at(-1);
    if (last && at - last[0] > 1.5 * STEP_S) {
      made.push([last[0] + STEP_S, null]);
    }
    made.push([at, value]);
  }
  return made;
}

const number = (text) => (text === null ? null : text === '+Inf' ? Infinity : text === '-Inf' ? -Infinity : Number(text));

function frame(target, labels, values) {
  const name = legend(target.legendFormat, labels);
  const { __name__, ...rest } = labels;
  return createDataFrame({
    refId: target.refId,
    name,
    fields: [
      { name: 'Time', type: FieldType.time, values: values.map(([at]) => at * 1000), config: { interval: STEP_S * 1000 } },
      { name: 'Value', type: FieldType.number, labels: rest, values: values.map(([, value]) => number(value)), config: { displayNameFromDS: name } },
    ],
  });
}

function table(target, result) {
  const names = [...new Set(result.flatMap(({ metric }) => Object.keys(metric)))].filter((name) => name !== '__name__').sort();
  return createDataFrame({
    refId: target.refId,
    fields: [
      { name: 'Time', type: FieldType.time, values: result.map(({ value }) => value[0] * 1000) },
      ...names.map((name) => ({ name, type: FieldType.string, values: result.map(({ metric }) => metric[name] ?? '') })),
      { name: 'Value', type: FieldType.number, values: result.map(({ value }) => number(value[1])) },
    ],
  });
}

export const prometheus = {
  uid: 'prometheus',
  name: 'Prometheus',
  type: 'prometheus',
  meta: { id: 'prometheus' },
  getRef: () => ({ uid: 'prometheus', type: 'prometheus' }),
  query: (request) =>
    from(
      Promise.all(request.targets.filter((each) => !each.hide).map((each) => frames(each, request))).then((all) => ({ data: all.flat() }))
    ),
  // label_values(METRIC, LABEL), the only question that our choices ask.
  metricFindQuery: async (query, options) => {
    const [, series, label] = /^label_values\((.*),\s*(\w+)\)$/.exec(query.query ?? query);
    const values = await asked(`label/${label}/values`, { 'match[]': filled(series, options.scopedVars) });
    return values.map((text) => ({ text }));
  },
};

export function runRequest(source, request) {
  return source.query(request).pipe(
    map(({ data }) => ({ state: LoadingState.Done, series: data, annotations: [], timeRange: request.range, request }))
  );
}
