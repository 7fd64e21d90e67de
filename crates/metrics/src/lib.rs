//! The status documents of a gateway as text for Prometheus and whoever else reads its formats.
//!
//! ```
//! use uxfrm_metrics::{figures::Figures, format::TextFormat, page::page};
//!
//! let text = page(Figures::silent(), TextFormat::chosen(Some("application/openmetrics-text")));
//! assert!(text.contains("\nuxfrm_up 0\n") && text.ends_with("# EOF\n"));
//! ```
//!
//! | module | content |
//! | --- | --- |
//! | [`figures`] | the documents of one scrape |
//! | [`page`] | the text |
//! | [`mod@format`] | Prometheus 0.0.4 or OpenMetrics 1.0, by `Accept` |
//! | [`catalogue`] | all metrics: name, type, labels, meaning |
//!
//! It promises that a page is always well formed and bounded, whatever the documents say: label
//! values are short, no series stands twice, and there are at most so many of each kind. Nothing
//! here does I/O or reads a clock.
#![forbid(unsafe_code)]

pub mod catalogue;
mod device;
mod distinct;
pub mod figures;
pub mod format;
mod gateway;
mod kernel;
mod label;
mod link;
pub mod page;
mod sample;
mod state;
mod tunnel;
mod worker;
