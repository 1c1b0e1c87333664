// The panels: Grafana publishes their parts (@grafana/ui), not the plugins that put them together. Each here
// does what its plugin does with those parts; the state timeline alone is a drawing of ours.
import React from 'react';
import {
  FieldColorModeId, PanelPlugin, getDisplayValueAlignmentFactors, displayNameOverrideProcessor, getFieldDisplayName,
  getFieldDisplayValues, identityOverrideProcessor, numberOverrideProcessor, standardEditorsRegistry,
  standardFieldConfigEditorRegistry, standardTransformers, standardTransformersRegistry, thresholdsOverrideProcessor,
  unitOverrideProcessor, valueMappingsOverrideProcessor, getDisplayProcessor,
} from '@grafana/data';
import { BarGauge, BigValue, BigValueTextMode, Table, TimeSeries, VizRepeater, useTheme2 } from '@grafana/ui';

const shown = (id, path, process, more = {}) => ({
  id, path, name: id, process, editor: () => null, override: () => null, shouldApply: () => true, ...more,
});

export function prepare() {
  standardEditorsRegistry.setInit(() => []);
  standardFieldConfigEditorRegistry.setInit(() => [
    shown('displayName', 'displayName', displayNameOverrideProcessor),
    shown('unit', 'unit', unitOverrideProcessor),
    shown('min', 'min', numberOverrideProcessor),
    shown('max', 'max', numberOverrideProcessor),
    shown('decimals', 'decimals', numberOverrideProcessor),
    shown('noValue', 'noValue', identityOverrideProcessor),
    shown('color', 'color', identityOverrideProcessor),
    shown('thresholds', 'thresholds', thresholdsOverrideProcessor),
    shown('mappings', 'mappings', valueMappingsOverrideProcessor),
  ]);
  standardTransformersRegistry.setInit(() =>
    [...new Map(Object.values(standardTransformers).map((each) => [each.id, each])).values()].map((each) => ({
      id: each.id, name: each.name, transformation: each, editor: () => null,
    }))
  );
}

// Defaults of Grafana's graph fields, which our files leave out.
const GRAPH = {
  drawStyle: 'line', lineInterpolation: 'linear', barAlignment: 0, lineWidth: 1, fillOpacity: 0, gradientMode: 'none', spanNulls: false,
  insertNulls: false, showPoints: 'auto', pointSize: 5, stacking: { mode: 'none', group: 'A' }, axisPlacement: 'auto', axisLabel: '',
  axisColorMode: 'text', axisBorderShow: false, scaleDistribution: { type: 'linear' }, axisCenteredZero: false,
  hideFrom: { tooltip: false, viz: false, legend: false }, thresholdsStyle: { mode: 'off' }, fillBelowTo: undefined, lineStyle: undefined,
  axisSoftMin: undefined, axisSoftMax: undefined, hidden: undefined,
};
const CELLS = { align: 'auto', inspect: false, cellOptions: { type: 'auto' }, filterable: undefined, hidden: undefined, width: undefined, minWidth: undefined };

function plugin(component, custom, colour) {
  return new PanelPlugin(component).useFieldConfig({
    standardOptions: { color: { defaultValue: { mode: colour } } },
    useCustomConfig: (builder) => {
      for (const [name, defaultValue] of Object.entries(custom)) {
        builder.addCustomEditor(shown(name, name, identityOverrideProcessor, { defaultValue }));
      }
    },
  });
}

const Empty = ({ fieldConfig, width, height }) => (
  <div style={{ width, height, display: 'flex', alignItems: 'center', justifyContent: 'center', textAlign: 'center', opacity: 0.7 }}>
    {fieldConfig.defaults.noValue ?? 'No data'}
  </div>
);
const known = (data) => data.series.filter((frame) => frame.length > 0);

function TimeSeriesPanel(props) {
  const { data, timeRange, timeZone, width, height, options } = props;
  const frames = known(data);
  if (!frames.length) {
    return <Empty {...props} />;
  }
  return <TimeSeries frames={frames} structureRev={1} timeRange={timeRange} timeZone={timeZone} width={width} height={height} legend={options.legend} />;
}

function values({ data, fieldConfig, options, replaceVariables, timeZone }, theme, sparkline) {
  return getFieldDisplayValues({
    fieldConfig, reduceOptions: options.reduceOptions, replaceVariables, theme, data: data.series, sparkline, timeZone,
  });
}

function StatPanel(props) {
  const theme = useTheme2();
  const { width, height, options } = props;
  const render = ({ value, width, height, count }) => (
    <BigValue
      value={value.display} count={count} sparkline={value.sparkline} colorMode={options.colorMode} graphMode={options.graphMode}
      justifyMode={options.justifyMode} textMode={options.textMode ?? BigValueTextMode.Auto} width={width} height={height} theme={theme}
      wideLayout={options.wideLayout}
    />
  );
  return (
    <VizRepeater
      getValues={() => values(props, theme, options.graphMode !== 'none')} renderValue={render} width={width} height={height}
      source={props.data} itemSpacing={3} renderCounter={0} autoGrid orientation={options.orientation}
    />
  );
}

function BarGaugePanel(props) {
  const theme = useTheme2();
  const { width, height, options } = props;
  const render = ({ value, width, height, orientation, alignmentFactors }) => (
    <BarGauge
      value={value.display} width={width} height={height} orientation={orientation} field={value.field} display={value.view ? undefined : value.display.display}
      theme={theme} itemSpacing={8} alignmentFactors={alignmentFactors} displayMode={options.displayMode} showUnfilled={options.showUnfilled}
      valueDisplayMode={options.valueMode} namePlacement={options.namePlacement} text={options.text}
    />
  );
  return (
    <VizRepeater
      getValues={() => values(props, theme, false)} renderValue={render} width={width} height={height} source={props.data}
      getAlignmentFactors={getDisplayValueAlignmentFactors}
      itemSpacing={8} minVizHeight={options.minVizHeight} maxVizHeight={options.maxVizHeight} renderCounter={0} orientation={options.orientation}
    />
  );
}

function TablePanel(props) {
  const [frame] = known(props.data);
  if (!frame) {
    return <Empty {...props} />;
  }
  return <Table data={frame} width={props.width} height={props.height} showTypeIcons={false} cellHeight={props.options.cellHeight} enableSharedCrosshair={false} />;
}

// Not published: one row for each series, a bar for as long as its value stays.
function TimelinePanel(props) {
  const theme = useTheme2();
  const frames = known(props.data);
  if (!frames.length) {
    return <Empty {...props} />;
  }
  const { width, height, timeRange } = props;
  const from = timeRange.from.valueOf();
  const span = timeRange.to.valueOf() - from;
  const row = Math.min(30, (height - 20) / frames.length);
  const left = Math.min(360, width * 0.4);
  const x = (time) => left + ((width - left) * (time - from)) / span;
  return (
    <svg width={width} height={height} style={{ fontSize: 12 }}>
      {frames.map((frame, index) => {
        const [time, value] = [frame.fields[0], frame.fields[1]];
        const display = value.display ?? getDisplayProcessor({ field: value, theme });
        const step = time.config.interval ?? 1000;
        const bars = [];
        for (let at = 0; at < frame.length; at++) {
          const seen = value.values[at];
          if (seen === null || seen === undefined) continue;
          const last = bars.at(-1);
          if (last && last.seen === seen && last.until === time.values[at]) last.until += step;
          else bars.push({ seen, since: time.values[at], until: time.values[at] + step });
        }
        const middle = index * row + row / 2 + 4;
        return (
          <g key={index}>
            <text x={left - 8} y={middle} textAnchor="end" fill={theme.colors.text.primary}>{getFieldDisplayName(value, frame, frames)}</text>
            {bars.map(({ seen, since, until }) => {
              const { text, color } = display(seen);
              const wide = x(until) - x(since);
              return (
                <g key={since}>
                  <rect x={x(since)} y={index * row + 2} width={wide} height={row - 4} fill={color} opacity={0.7} />
                  {wide > 8 * text.length && <text x={x(since) + 6} y={middle} fill={theme.colors.text.maxContrast}>{text}</text>}
                </g>
              );
            })}
          </g>
        );
      })}
    </svg>
  );
}

export const plugins = {
  timeseries: plugin(TimeSeriesPanel, GRAPH, FieldColorModeId.PaletteClassic),
  stat: plugin(StatPanel, {}, FieldColorModeId.Thresholds),
  bargauge: plugin(BarGaugePanel, {}, FieldColorModeId.Thresholds),
  table: plugin(TablePanel, CELLS, FieldColorModeId.Thresholds),
  'state-timeline': plugin(TimelinePanel, GRAPH, FieldColorModeId.ContinuousGrYlRd),
};
