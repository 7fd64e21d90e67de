mod checks;

use uxfrm_crypto::Backend;

use super::*;

fn devices(text: &str) -> anyhow::Result<Devices> {
    let config = crate::config::Config::parse("c.toml", text)?;
    let mut database = Database::new(Backend::Auto, 1);
    Devices::plug(&config.device, DeviceCreation::DryRun, 0, &mut database)
}

#[test]
fn device_and_function_names_are_listed() {
    let devices = devices(
        "[[device]]\nname = 'nic0'\nprofile = 'niantic'\nvfs = 3\n\
         [[device]]\nname = 'nic1'\nover = 'eth0'\nlink_down = 'release'",
    )
    .unwrap();
    let names: Vec<_> = devices.nics.names().into_iter().map(|(name, _)| name).collect();
    for name in ["nic0", "nic0v0", "nic0v2", "nic1"] {
        assert!(names.iter().any(|known| known == name), "{name}");
    }
    let (nic, function) = devices.nics.nic("nic0v2").unwrap();
    assert_eq!(function, FunctionId(3));
    let share = lock(&nic).virtual_function(function).unwrap().share;
    assert_eq!((share.receive, share.addresses), (Some(256), Some(32)));
}

#[test]
fn what_can_not_be_is_named() {
    for (text, message) in [
        (
            "[[device]]\nname = 'n'\n[[device]]\nname = 'n'",
            "[[device]] n: there is a device n already",
        ),
        (
            "[[device]]\nname = 'n'\nprofile = '/no/such'",
            "[[device]] n: profile /no/such: neither niantic, connectx6dx, netdevsim or unlimited, nor a file",
        ),
        (
            "[[device]]\nname = 'n'\nvfs = 65",
            "c.toml:3:7: 65 virtual functions; there can be 0 to 64",
        ),
    ] {
        let shown = format!("{:#}", devices(text).unwrap_err());
        assert!(shown.starts_with(message), "{shown}");
    }
}
