//! In which of two forms a page is written, as a reader asks by `Accept` (RFC 9110 §12.5.1).

/// The form of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TextFormat {
    /// Prometheus' text format 0.0.4, which every reader knows.
    #[default]
    Prometheus,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

/// A media range that a reader accepts.
struct Range<'a> {
    kind: &'a str,
    version: Option<&'a str>,
    /// From 0, not at all, to 1000.
    quality: u16,
}

/// Weights have three digits behind the point at the most.
const FULL: u16 = 1000;

impl TextFormat {
    /// The form for a reader that sends this `Accept`. OpenMetrics goes before text of the same
    /// weight; who names neither, or sends nothing, gets [`TextFormat::Prometheus`].
    ///
    /// ```
    /// use uxfrm_metrics::format::TextFormat;
    ///
    /// let both = "application/openmetrics-text;q=0.6,text/plain;version=0.0.4;q=0.5";
    /// assert_eq!(TextFormat::chosen(Some(both)), TextFormat::OpenMetrics);
    /// assert_eq!(TextFormat::chosen(Some("*/*")), TextFormat::Prometheus);
    /// ```
    #[must_use]
    pub fn chosen(accept: Option<&str>) -> Self {
        let ranges: Vec<_> =
            accept.unwrap_or_default().split(',').filter_map(Range::read).collect();
        let weight = |format| ranges.iter().filter_map(|range| range.weight(format)).max();
        let open = weight(Self::OpenMetrics).unwrap_or_default();
        let text = weight(Self::Prometheus).unwrap_or_default();
        if open > 0 && open >= text { Self::OpenMetrics } else { Self::Prometheus }
    }

    /// The page's `Content-Type`.
    #[must_use]
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

impl<'a> Range<'a> {
    fn read(text: &'a str) -> Option<Self> {
        let mut parts = text.split(';').map(str::trim);
        let kind = parts.next()?;
        let mut range = Self { kind, version: None, quality: FULL };
        for (name, value) in parts.filter_map(|parameter| parameter.split_once('=')) {
            match name.trim().to_ascii_lowercase().as_str() {
                "version" => range.version = Some(value.trim().trim_matches('"')),
                "q" => range.quality = quality(value.trim())?,
                _other => {}
            }
        }
        Some(range)
    }

    /// How much it wants a form; `None` where it does not speak of it.
    fn weight(&self, format: TextFormat) -> Option<u16> {
        let is_of = |kind: &str, version: fn(&str) -> bool| {
            self.kind.eq_ignore_ascii_case(kind) && self.version.is_none_or(version)
        };
        let speaks = match format {
            // What 0.0.1 of OpenMetrics had is in 1.0.0 as well.
            TextFormat::OpenMetrics => is_of("application/openmetrics-text", |version| {
                version == "0.0.1" || version.starts_with("1.")
            }),
            TextFormat::Prometheus => {
                is_of("text/plain", |version| version == "0.0.4")
                    || is_of("text/*", |_| true)
                    || is_of("*/*", |_| true)
            }
        };
        speaks.then_some(self.quality)
    }
}

/// A weight in thousandths; `None` for what is none.
fn quality(text: &str) -> Option<u16> {
    let (whole, behind) = text.split_once('.').unwrap_or((text, ""));
    let digits = behind.bytes().all(|byte| byte.is_ascii_digit()) && behind.len() <= 3;
    let thousandths: u16 = format!("{behind:0<3}").parse().ok().filter(|_| digits)?;
    match whole {
        "0" => Some(thousandths),
        "1" if thousandths == 0 => Some(FULL),
        _wrong => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What Prometheus 2.42 sends.
    const PROMETHEUS: &str = "application/openmetrics-text;version=1.0.0,\
                              application/openmetrics-text;version=0.0.1;q=0.75,\
                              text/plain;version=0.0.4;q=0.5,*/*;q=0.1";

    #[test]
    fn format_by_accept() {
        let table = [
            (None, TextFormat::Prometheus),
            (Some(""), TextFormat::Prometheus),
            (Some("*/*"), TextFormat::Prometheus),
            (Some("text/html,application/xhtml+xml,*/*;q=0.8"), TextFormat::Prometheus),
            (Some(PROMETHEUS), TextFormat::OpenMetrics),
            (Some("application/openmetrics-text"), TextFormat::OpenMetrics),
            (Some("Application/OpenMetrics-Text ; Version=\"1.0.0\""), TextFormat::OpenMetrics),
            (Some("application/openmetrics-text;version=2.0.0"), TextFormat::Prometheus),
            (Some("application/openmetrics-text;q=0,text/plain"), TextFormat::Prometheus),
            (Some("application/openmetrics-text;q=0"), TextFormat::Prometheus),
            (Some("application/openmetrics-text;q=0.4,text/plain;q=0.41"), TextFormat::Prometheus),
            (Some("application/openmetrics-text;q=0.5,text/plain;q=0.5"), TextFormat::OpenMetrics),
            (Some("application/openmetrics-text;q=2"), TextFormat::Prometheus),
            (Some("application/openmetrics-text;q=0.1234"), TextFormat::Prometheus),
            (Some(";;;,,q=,=;"), TextFormat::Prometheus),
        ];
        for (accept, format) in table {
            assert_eq!(TextFormat::chosen(accept), format, "{accept:?}");
        }
    }
}
