//! Where documents come from: the gateway of this network namespace, or one that tests make up.

use uxfrm_control_client::stat;
use uxfrm_status::protocol::{StatusAnswer, StatusRequest};

/// Answers requests of the status protocol.
pub trait Source: Send + Sync + 'static {
    /// Asks, and waits for the answer; called on threads that may wait.
    ///
    /// # Errors
    /// Why there is none.
    fn ask(&self, request: &StatusRequest) -> Result<StatusAnswer, stat::Error>;
}

/// The gateway of this process's network namespace, by its status socket. What it explains of a
/// packet is completed with what the kernel does with it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gateway;

impl Source for Gateway {
    fn ask(&self, request: &StatusRequest) -> Result<StatusAnswer, stat::Error> {
        let mut answer = stat::ask(request)?;
        if let (StatusRequest::Why(query), StatusAnswer::Why(explanation)) = (request, &mut answer)
        {
            uxfrm_host_facts::complete(query, explanation);
            uxfrm_host_facts::tell_what_stops_it(explanation);
        }
        Ok(answer)
    }
}
