// One shipped dashboard, drawn by Grafana's published libraries: scenes lays it out, fills in the choices
// and runs the queries; data applies units, mappings, thresholds and overrides; ui draws the panels.
// Ours is only what Grafana does not publish: the way to Prometheus (prometheus.js) and the panels'
// frames around the parts of @grafana/ui (panels.jsx).
import React from 'react';
import { createRoot } from 'react-dom/client';
import { createTheme } from '@grafana/data';
import { config, setDataSourceSrv, setRunRequest, setPluginImportUtils, setAppEvents, setTemplateSrv } from '@grafana/runtime';
import { EventBusSrv } from '@grafana/data';
import { GlobalStyles, PortalContainer } from '@grafana/ui';
import { ThemeContext } from '@grafana/data';
import { MemoryRouter } from 'react-router-dom';
import {
  DataSourceVariable, EmbeddedScene, QueryVariable, SceneControlsSpacer, SceneGridItem, SceneGridLayout,
  SceneDataTransformer, SceneGridRow, SceneQueryRunner, SceneTimePicker, SceneTimeRange, SceneVariableSet, VariableValueSelectors,
  VizPanel, sceneGraph, sceneUtils,
} from '@grafana/scenes';
import { prometheus, runRequest } from './prometheus.js';
import { plugins, prepare } from './panels.jsx';

const asked = new URLSearchParams(window.location.search);
const theme = createTheme({ colors: { mode: 'dark' } });
config.theme2 = theme;
config.theme = theme.v1;

prepare();
setAppEvents(new EventBusSrv());
setRunRequest(runRequest);
const settings = { uid: 'prometheus', name: 'Prometheus', type: 'prometheus', isDefault: true, meta: { id: 'prometheus', info: { logos: { small: '' } } } };
setDataSourceSrv({
  get: async () => prometheus,
  getList: () => [settings],
  getInstanceSettings: () => settings,
  reload: () => undefined,
});
setTemplateSrv({ getVariables: () => [], replace: (text) => text, containsTemplate: () => false, updateTimeRange: () => undefined });
setPluginImportUtils({ importPanelPlugin: async (id) => { throw new Error(`no panel ${id}`); }, getPanelPluginFromCache: () => undefined });
for (const [pluginId, plugin] of Object.entries(plugins)) {
  sceneUtils.registerRuntimePanelPlugin({ pluginId, plugin });
}

function variable(made) {
  const shared = { name: made.name, label: made.label, hide: made.hide };
  if (made.type === 'datasource') {
    return new DataSourceVariable({ ...shared, pluginId: made.query });
  }
  return new QueryVariable({
    ...shared, query: made.query, datasource: made.datasource, isMulti: made.multi, includeAll: made.includeAll,
    allValue: made.allValue, sort: made.sort, refresh: made.refresh, regex: made.regex ?? '',
    ...(made.includeAll ? { value: '$__all', text: 'All' } : {}),
  });
}

function item(panel) {
  return new SceneGridItem({
    ...{ x: panel.gridPos.x, y: panel.gridPos.y, width: panel.gridPos.w, height: panel.gridPos.h },
    body: new VizPanel({
      pluginId: panel.type, title: panel.title, description: panel.description, options: panel.options ?? {},
      fieldConfig: panel.fieldConfig, hoverHeader: false, displayMode: panel.transparent ? 'transparent' : 'default',
      $data: new SceneDataTransformer({
        transformations: panel.transformations ?? [],
        $data: new SceneQueryRunner({
          datasource: panel.datasource, queries: panel.targets, maxDataPoints: panel.maxDataPoints ?? 400, minInterval: panel.interval,
        }),
      }),
    }),
  });
}

function children(panels) {
  const made = [];
  for (const panel of panels) {
    if (panel.type === 'row') {
      made.push(new SceneGridRow({ title: panel.title, y: panel.gridPos.y, isCollapsed: false, children: (panel.panels ?? []).map(item) }));
    } else if (made.length && made[made.length - 1] instanceof SceneGridRow) {
      const row = made[made.length - 1];
      row.setState({ children: [...row.state.children, item(panel)] });
    } else {
      made.push(item(panel));
    }
  }
  return made;
}

const board = await (await fetch(`/${asked.get('board')}.json`)).json();
const scene = new EmbeddedScene({
  $timeRange: new SceneTimeRange({ from: asked.get('from'), to: asked.get('to') }),
  $variables: new SceneVariableSet({ variables: board.templating.list.map(variable) }),
  controls: [new VariableValueSelectors({}), new SceneControlsSpacer(), new SceneTimePicker({ isOnCanvas: true })],
  body: new SceneGridLayout({ children: children(board.panels), isLazy: false }),
});
// Whether every query of every panel was answered.
window.drawn = () => {
  const runners = sceneGraph.findAllObjects(scene, (each) => each instanceof SceneQueryRunner);
  return runners.length > 0 && runners.every((each) => ['Done', 'Error'].includes(each.state.data?.state));
};

createRoot(document.getElementById('root')).render(
  <ThemeContext.Provider value={theme}>
    <GlobalStyles />
    <MemoryRouter>
      <div style={{ padding: 16, minHeight: '100vh', width: '100%', boxSizing: 'border-box', display: 'flex', flexDirection: 'column', background: theme.colors.background.canvas }}>
        <h3 style={{ margin: '0 0 8px' }}>{board.title}</h3>
        <scene.Component model={scene} />
      </div>
    </MemoryRouter>
    <PortalContainer />
  </ThemeContext.Provider>
);
