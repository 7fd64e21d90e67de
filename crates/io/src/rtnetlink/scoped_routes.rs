//! Routes and rules that are removed with their owner.

use super::{Error, Route, RoutingRule, Rtnetlink};

/// Removes what was added through it when it is [removed](Self::remove) or dropped, last in first
/// out.
///
/// A killed process leaves rules and routes without a device behind; routes to a TUN go with the
/// TUN. The next run's [`add_rule`](Self::add_rule) takes an equal rule over.
#[derive(Debug)]
pub struct ScopedRoutes {
    kernel: Rtnetlink,
    things: Vec<Entry>,
}

#[derive(Clone, Copy, Debug)]
enum Entry {
    Route(Route),
    Rule(RoutingRule),
}

impl ScopedRoutes {
    /// An empty list, for the namespace of `kernel`.
    #[must_use]
    pub fn new(kernel: Rtnetlink) -> Self {
        Self { kernel, things: Vec::new() }
    }

    /// Adds a route.
    ///
    /// # Errors
    /// As [`Rtnetlink::add_route`]; an existing route is somebody else's and stays.
    pub fn add_route(&mut self, route: Route) -> Result<(), Error> {
        self.kernel.add_route(&route)?;
        self.things.push(Entry::Route(route));
        Ok(())
    }

    /// Adds a rule, or takes over an equal one.
    ///
    /// # Errors
    /// As [`Rtnetlink::add_rule`], except [`Error::Exists`].
    pub fn add_rule(&mut self, rule: RoutingRule) -> Result<(), Error> {
        match self.kernel.add_rule(&rule) {
            Ok(()) | Err(Error::Exists { .. }) => self.things.push(Entry::Rule(rule)),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Removes everything; missing entries are no error.
    ///
    /// # Errors
    /// The last of the kernel's; all entries were tried.
    pub fn remove(mut self) -> Result<(), Error> {
        self.take_back()
    }

    fn take_back(&mut self) -> Result<(), Error> {
        let mut result = Ok(());
        while let Some(thing) = self.things.pop() {
            let done = match &thing {
                Entry::Route(route) => self.kernel.delete_route(route),
                Entry::Rule(rule) => self.kernel.delete_rule(rule),
            };
            if !matches!(done, Ok(()) | Err(Error::NotFound { .. })) {
                result = done;
            }
        }
        result
    }
}

impl Drop for ScopedRoutes {
    fn drop(&mut self) {
        // Callers that need the error use `remove`.
        let _untold = self.take_back();
    }
}
