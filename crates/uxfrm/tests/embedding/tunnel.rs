use uxfrm::{
    Database, Direction, Error, Event, KeyMaterial, Moment, Policy, Prefix, SaConfig, SaTransform,
    Spi, Template,
};

/// A tunnel between two gateways: what an IKE daemon installs for a child SA. All of it or nothing.
fn add_tunnel(
    database: &mut Database,
    now: Moment,
    (own, peer): (std::net::IpAddr, std::net::IpAddr),
    (here, there): (Prefix, Prefix),
    (out, back): ((Spi, KeyMaterial), (Spi, KeyMaterial)),
) -> Result<(), Error> {
    let (to_peer, to_us) = (Template::esp_tunnel(own, peer), Template::esp_tunnel(peer, own));
    let (out_keys, back_keys) = (SaTransform::aes_gcm(out.1)?, SaTransform::aes_gcm(back.1)?);
    let states = [
        SaConfig::esp_tunnel(own, peer, out.0, out_keys).with_esn(),
        SaConfig::esp_tunnel(peer, own, back.0, back_keys).with_esn(),
    ];
    let policies = [
        Policy::protect(Direction::Out, here, there, to_peer),
        Policy::protect(Direction::In, there, here, to_us),
        Policy::protect(Direction::Forward, there, here, to_us),
    ];
    database.apply(now, |change| {
        let (mut sas, mut entries) = (Vec::new(), Vec::new());
        let added = (|| {
            for state in states {
                sas.push(change.add_sa(state)?);
            }
            for policy in policies {
                entries.push(change.add_policy(policy)?);
            }
            Ok(())
        })();
        if added.is_err() {
            // The first part that was refused changed nothing; those before it are taken out again.
            for sa in &sas {
                change.delete_sa(sa.id(), sa.config().mark)?;
            }
            for entry in &entries {
                change.delete_policy(&entry.key())?;
            }
        }
        added
    })
}

/// Lifetimes and events. Gives what your IKE implementation is to hear.
fn observe(database: &mut Database, now: Moment, mut events: Vec<Event>) -> Vec<Event> {
    events.iter().for_each(|event| database.observe(event));
    if database.poll_timeout().is_some_and(|timeout| timeout.at <= now) {
        database.handle_timeout(now, &mut events);
    }
    events
}
