//! A host's SAs and policies, and its device if the path has one.

use std::sync::{Arc, Mutex};

use anyhow::{Context, ensure};
use uxfrm_crypto::Backend;
use uxfrm_engine::{Database, DeviceId, HostAddresses, HostPort, Published, Settings, UdpSuper};
use uxfrm_offload::{FunctionId, ModelNic, NicSetup, Nics, Profile};

use super::NOW;
use super::association::{DEVICE, HostSide};
use super::plan::ProtectionPath;

/// One host's database and device.
#[derive(Debug)]
pub(super) struct HostConfig {
    database: Database,
    nic: Option<Arc<Mutex<ModelNic>>>,
}

impl HostConfig {
    pub(super) fn new(end: HostSide, path: ProtectionPath) -> anyhow::Result<Self> {
        let mut database = Database::new(Backend::Auto, 1);
        let nic = match path.kind() {
            Some(_) => Some(plug(&mut database)?),
            None => None,
        };
        if path != ProtectionPath::Clear {
            database.apply(NOW, |change| -> anyhow::Result<()> {
                for from in HostSide::BOTH {
                    change.add_policy(from.policy(end, path))?;
                    change.add_sa(from.state(end, path)?)?;
                }
                Ok(())
            })?;
        }
        Ok(Self { database, nic })
    }

    pub(super) fn settings(&self, end: HostSide) -> Settings {
        let addresses: HostAddresses = [end.address().into()].into_iter().collect();
        // As with a TUN.
        let host = HostPort::SuperPackets { udp: UdpSuper::Refused };
        Settings { addresses, host, ..Settings::default() }
    }

    pub(super) fn published(&self) -> Published {
        self.database.published()
    }

    pub(super) fn nic(&self) -> Option<&Mutex<ModelNic>> {
        self.nic.as_deref()
    }
}

/// Adds a device that supports both kinds of offload.
fn plug(database: &mut Database) -> anyhow::Result<Arc<Mutex<ModelNic>>> {
    let setup =
        NicSetup::new(Profile::by_name("unlimited").context("a profile of ours")?, DeviceId(7));
    let (nic, nics) = (Arc::new(Mutex::new(ModelNic::new(setup)?)), Nics::default());
    ensure!(nics.add_function(DEVICE, &nic, FunctionId::PHYSICAL), "the device has its function");
    database.set_devices(Box::new(nics));
    Ok(nic)
}
