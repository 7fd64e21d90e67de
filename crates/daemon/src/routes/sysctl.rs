//! Kernel settings that the TUN needs: set where possible, reported where not.

use std::{fs, io};

use uxfrm_io::netns;

/// Lets in what comes out of tunnels: its way back may be by another device as long as it has no
/// mark, and the strict check of ways back (`rp_filter` 1) would drop it.
pub(super) fn accept_from(tun: &str) {
    let strict = ["all", tun].map(|device| number("ipv4", device, "rp_filter"));
    if strict.into_iter().max() != Some(1) {
        return;
    }
    if let Err(error) = set("ipv4", tun, "rp_filter", "2") {
        tracing::warn!(
            %error,
            "net.ipv4.conf.{tun}.rp_filter can't be set to 2: the kernel may drop what comes out of tunnels"
        );
    }
}

/// Has the TUN forward where another device does: the setting of a single device is not that of
/// those that come later, and the kernel would drop what comes out of tunnels for others.
pub(super) fn forward_from(tun: &str) {
    for (family, setting) in [("ipv4", "forwarding"), ("ipv6", "force_forwarding")] {
        if number(family, tun, setting) != 0 || !is_set_elsewhere(family, setting, tun) {
            continue;
        }
        match set(family, tun, setting, "1") {
            Ok(()) => tracing::info!(
                "net.{family}.conf.{tun}.{setting} is 1 now, as another device's is: what comes out of tunnels for others is forwarded"
            ),
            Err(error) => tracing::warn!(
                %error,
                "net.{family}.conf.{tun}.{setting} is 0 and can't be set: the kernel drops what comes out of tunnels for others; set it to 1"
            ),
        }
    }
}

fn is_set_elsewhere(family: &str, setting: &str, tun: &str) -> bool {
    let Ok(devices) = fs::read_dir(format!("/proc/sys/net/{family}/conf")) else { return false };
    let names = devices.flatten().filter_map(|device| device.file_name().into_string().ok());
    let mut others = names.filter(|name| !["all", "default", "lo", tun].contains(&&**name));
    others.any(|name| number(family, &name, setting) == 1)
}

/// 0 where there is no such setting.
fn number(family: &str, device: &str, setting: &str) -> u8 {
    let path = format!("/proc/sys/net/{family}/conf/{device}/{setting}");
    fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

fn set(family: &str, device: &str, setting: &str, value: &str) -> io::Result<()> {
    netns::set_sysctl(&format!("net/{family}/conf/{device}/{setting}"), value)
}
