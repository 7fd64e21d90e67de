use std::os::fd::AsFd as _;
use std::time::Duration;

use uxfrm_io::napi::{NapiDeferral, spans};
use uxfrm_io::{Namespace, Rtnetlink, ethtool};

use crate::{in_namespace, not_run};

const SPAN: Duration = Duration::from_micros(100);

#[test]
fn napi_deferral_ends_with_last_owner() {
    in_namespace(|| {
        let mut kernel = Rtnetlink::open().unwrap();
        let here = Namespace::current().unwrap();
        kernel.add_veth("near", "far", here.as_fd()).unwrap();
        // With GRO a veth has queues of its own.
        ethtool::set_features("near", ethtool::feature::GRO, ethtool::FeatureState::On).unwrap();
        let [near, far] = ["near", "far"].map(|name| kernel.link(name).unwrap().index);
        [near, far].iter().for_each(|link| kernel.set_up(*link).unwrap());
        let mut gathering = match NapiDeferral::start(near, SPAN) {
            Ok(gathering) => gathering,
            Err(error) => return not_run(&format!("a kernel before Linux 6.13: {error}")),
        };
        assert_eq!(spans(near).unwrap(), [SPAN]);
        // Somebody else's wish stays.
        drop(NapiDeferral::start(near, SPAN * 2).unwrap());
        assert_eq!(spans(near).unwrap(), [SPAN]);
        gathering.restore();
        assert_eq!(spans(near).unwrap(), [Duration::ZERO]);
        gathering.reapply().unwrap();
        assert_eq!(spans(near).unwrap(), [SPAN]);
        drop(gathering);
        assert_eq!(spans(near).unwrap(), [Duration::ZERO]);
        assert_eq!(spans(far).unwrap(), []);
    });
}

/// As it is when the device has come up anew.
#[test]
fn new_napi_queue_defers_after_renew() {
    in_namespace(|| {
        let mut kernel = Rtnetlink::open().unwrap();
        let here = Namespace::current().unwrap();
        kernel.add_veth("near", "far", here.as_fd()).unwrap();
        let [near, far] = ["near", "far"].map(|name| kernel.link(name).unwrap().index);
        [near, far].iter().for_each(|link| kernel.set_up(*link).unwrap());
        let mut gathering = match NapiDeferral::start(near, SPAN) {
            Ok(gathering) => gathering,
            Err(error) => return not_run(&format!("a kernel before Linux 6.13: {error}")),
        };
        assert_eq!(spans(near).unwrap(), []);
        ethtool::set_features("near", ethtool::feature::GRO, ethtool::FeatureState::On).unwrap();
        assert_eq!(spans(near).unwrap(), [Duration::ZERO]);
        gathering.reapply().unwrap();
        assert_eq!(spans(near).unwrap(), [SPAN]);
    });
}
