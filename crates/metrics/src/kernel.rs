//! The lines of `/proc/net/xfrm_stat`, by the names that node_exporter's collector `xfrm` gives
//! them: `XfrmInHdrError` is `node_xfrm_in_hdr_error_packets_total`.

use std::{collections::HashMap, fmt};

use prometheus_client::encoding::DescriptorEncoder;
use uxfrm_status::counters::CounterReport;

use crate::{
    catalogue::{Kind, Metric, Scope},
    label::Labels,
    sample,
};

macro_rules! kernel_counters {
    ($($line:literal, $name:literal, $help:literal;)+) => {
        /// Lines with their metrics, in the kernel's order.
        pub(crate) const COUNTERS: &[(&str, Metric)] = &[$((
            $line,
            Metric {
                name: concat!("node_xfrm_", $name, "_packets_total"),
                kind: Kind::Counter,
                scope: Scope::Gateway,
                labels: &[],
                help: concat!($line, ": ", $help),
            },
        ),)+];
    };
}

kernel_counters! {
    "XfrmInError", "in_error", "inbound, all that no other line counts";
    "XfrmInBufferError", "in_buffer_error", "inbound, no buffer was left";
    "XfrmInHdrError", "in_hdr_error", "inbound, a header was wrong";
    "XfrmInNoStates", "in_no_states", "inbound, no state has this SPI, address and protocol";
    "XfrmInStateProtoError", "in_state_proto_error", "inbound, not authentic, as with a wrong key";
    "XfrmInStateModeError", "in_state_mode_error", "inbound, the inner packet does not fit the mode";
    "XfrmInStateSeqError", "in_state_seq_error", "inbound, a replay or older than the window";
    "XfrmInStateExpired", "in_state_expired", "inbound, the state has expired";
    "XfrmInStateMismatch", "in_state_mismatch", "inbound, not the UDP encapsulation of the state";
    "XfrmInStateInvalid", "in_state_invalid", "inbound, the state is not valid";
    "XfrmInTmplMismatch", "in_tmpl_mismatch", "inbound, not by the states of the policy's templates";
    "XfrmInNoPols", "in_no_pols", "inbound, no policy for a packet that was decrypted";
    "XfrmInPolBlock", "in_pol_block", "inbound, a policy blocks it";
    "XfrmInPolError", "in_pol_error", "inbound, an error of a policy";
    "XfrmOutError", "out_error", "outbound, all that no other line counts";
    "XfrmOutBundleGenError", "out_bundle_gen_error", "outbound, no bundle could be made";
    "XfrmOutBundleCheckError", "out_bundle_check_error", "outbound, a bundle was not valid";
    "XfrmOutNoStates", "out_no_states", "outbound, no state fits the template";
    "XfrmOutStateProtoError", "out_state_proto_error", "outbound, an error of the transform";
    "XfrmOutStateModeError", "out_state_mode_error", "outbound, an error of the mode, as of its MTU";
    "XfrmOutStateSeqError", "out_state_seq_error", "outbound, sequence numbers are used up";
    "XfrmOutStateExpired", "out_state_expired", "outbound, the state has expired";
    "XfrmOutPolBlock", "out_pol_block", "outbound, a policy blocks it";
    "XfrmOutPolDead", "out_pol_dead", "outbound, the policy is dead";
    "XfrmOutPolError", "out_pol_error", "outbound, an error of a policy";
    "XfrmFwdHdrError", "fwd_hdr_error", "forwarded, a header was wrong";
    "XfrmOutStateInvalid", "out_state_invalid", "outbound, the state is not valid";
    "XfrmAcquireError", "acquire_error", "the state was not acquired in time";
    "XfrmOutStateDirError", "out_state_dir_error", "outbound, the state has dir in";
    "XfrmInStateDirError", "in_state_dir_error", "inbound, the state has dir out";
    "XfrmInIptfsError", "in_iptfs_error", "inbound, an error of IP-TFS";
    "XfrmOutNoQueueSpace", "out_no_queue_space", "outbound, no room in a queue";
}

/// Writes those that the gateway has.
pub(crate) fn write(encoder: &mut DescriptorEncoder<'_>, report: &CounterReport) -> fmt::Result {
    let counts: HashMap<&str, u64> =
        report.kernel.0.iter().rev().map(|(line, count)| (line.as_str(), *count)).collect();
    for (line, metric) in COUNTERS {
        let count = counts.get(line).map(|count| (Labels::new(), (*count).into()));
        sample::write(encoder, metric, count)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `XfrmInHdrError` as `in_hdr_error`.
    fn in_words(line: &str) -> String {
        let mut words = String::new();
        for letter in line.trim_start_matches("Xfrm").chars() {
            if letter.is_uppercase() && !words.is_empty() {
                words.push('_');
            }
            words.extend(letter.to_lowercase());
        }
        words
    }

    #[test]
    fn names_are_node_exporters() {
        for (line, metric) in COUNTERS {
            assert_eq!(metric.name, format!("node_xfrm_{}_packets_total", in_words(line)));
        }
    }
}
