//! Routes and rules that are taken back when their owner ends.

use super::{Error, Route, Rtnetlink, Rule};

/// What was added through it goes when it is [removed](Self::remove) or dropped, last in first out.
///
/// A process that is killed leaves rules and routes without a device behind; routes to a TUN go with the TUN. The
/// next run's [`add_rule`](Self::add_rule) finds an equal rule and takes it over.
#[derive(Debug)]
pub struct Installed {
    kernel: Rtnetlink,
    things: Vec<Entry>,
}

#[derive(Clone, Copy, Debug)]
enum Entry {
    Route(Route),
    Rule(Rule),
}

impl Installed {
    /// Nothing yet, in the namespace that `kernel` is connected to.
    #[must_use]
    pub fn new(kernel: Rtnetlink) -> Self {
        Self { kernel, things: Vec::new() }
    }

    /// Adds a route.
    ///
    /// # Errors
    /// As [`Rtnetlink::add_route`]; a route that is there already is somebody else's and stays.
    pub fn add_route(&mut self, route: Route) -> Result<(), Error> {
        self.kernel.add_route(&route)?;
        self.things.push(Entry::Route(route));
        Ok(())
    }

    /// Adds a rule, or takes over the one that is there: rules that are equal cannot be told apart.
    ///
    /// # Errors
    /// As [`Rtnetlink::add_rule`], except [`Error::Exists`].
    pub fn add_rule(&mut self, rule: Rule) -> Result<(), Error> {
        match self.kernel.add_rule(&rule) {
            Ok(()) | Err(Error::Exists { .. }) => self.things.push(Entry::Rule(rule)),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Takes everything back; what is gone already is no error.
    ///
    /// # Errors
    /// The last of the kernel's; all the others were tried all the same.
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

impl Drop for Installed {
    fn drop(&mut self) {
        // Nobody is left to tell; `remove` is for those who want to know.
        let _untold = self.take_back();
    }
}
