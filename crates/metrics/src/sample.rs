//! One metric with all its series.

use std::fmt;

use prometheus_client::{
    encoding::{
        CounterValueEncoder, DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue,
        EncodeLabelSet, GaugeValueEncoder, MetricEncoder, NoLabelSet,
    },
    metrics::{MetricType, exemplar::Exemplar},
};

use crate::catalogue::{Kind, Metric};

/// A number of a series.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Value {
    /// A count.
    Count(u64),
    /// A measure.
    Real(f64),
}

impl From<u64> for Value {
    fn from(count: u64) -> Self {
        Self::Count(count)
    }
}

impl From<bool> for Value {
    fn from(is_so: bool) -> Self {
        Self::Count(is_so.into())
    }
}

impl From<f64> for Value {
    fn from(measure: f64) -> Self {
        Self::Real(measure)
    }
}

impl EncodeGaugeValue for Value {
    fn encode(&self, encoder: &mut GaugeValueEncoder<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => EncodeGaugeValue::encode(count, encoder),
            Self::Real(measure) => EncodeGaugeValue::encode(measure, encoder),
        }
    }
}

impl EncodeCounterValue for Value {
    fn encode(&self, encoder: &mut CounterValueEncoder<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => EncodeCounterValue::encode(count, encoder),
            Self::Real(measure) => EncodeCounterValue::encode(measure, encoder),
        }
    }
}

/// Writes a metric with its series, if it has any.
pub(crate) fn write<L: EncodeLabelSet>(
    encoder: &mut DescriptorEncoder<'_>,
    metric: &Metric,
    series: impl IntoIterator<Item = (L, Value)>,
) -> fmt::Result {
    let mut series = series.into_iter().peekable();
    if series.peek().is_none() {
        return Ok(());
    }
    let (name, unit) = metric.stem();
    let kind = match metric.kind {
        Kind::Counter => MetricType::Counter,
        Kind::Gauge => MetricType::Gauge,
        Kind::Info => MetricType::Info,
    };
    let mut all = encoder.encode_descriptor(name, metric.help, unit.as_ref(), kind)?;
    for (labels, value) in series {
        write_one(&mut all, metric.kind, &labels, value)?;
    }
    Ok(())
}

fn write_one(
    all: &mut MetricEncoder<'_>,
    kind: Kind,
    labels: &impl EncodeLabelSet,
    value: Value,
) -> fmt::Result {
    /// None of them.
    const EXEMPLAR: Option<&Exemplar<NoLabelSet, f64>> = None;
    match kind {
        Kind::Counter => all.encode_family(labels)?.encode_counter(&value, EXEMPLAR),
        Kind::Gauge => all.encode_family(labels)?.encode_gauge(&value),
        Kind::Info => all.encode_info(labels),
    }
}
