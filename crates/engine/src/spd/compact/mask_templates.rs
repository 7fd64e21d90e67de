//! Mask templates of compact rules, interned.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;
use uxfrm_classify::MaskTemplate;

/// Mask templates with their reference counts; limited so that they stay in the first-level caches.
#[derive(Debug, Default)]
pub(crate) struct MaskTemplates(HashMap<Arc<MaskTemplate>, u32, RandomState>);

/// Upper limit of mask templates.
const MAX_TEMPLATES: usize = 256;

impl MaskTemplates {
    /// Adds a reference to a template; `None` if there is no room.
    pub(crate) fn share(&mut self, mask_template: MaskTemplate) -> Option<Arc<MaskTemplate>> {
        let kept = self.0.get_key_value(&mask_template).map(|(kept, _)| Arc::clone(kept));
        let kept = kept.or_else(|| self.have_room().then(|| Arc::new(mask_template)))?;
        *self.0.entry(Arc::clone(&kept)).or_default() += 1;
        Some(kept)
    }

    /// Drops a reference.
    pub(crate) fn release(&mut self, mask_template: &Arc<MaskTemplate>) {
        let Some(count) = self.0.get_mut(mask_template) else { return };
        *count -= 1;
        if *count == 0 {
            self.0.remove(mask_template);
        }
    }

    /// Whether another template fits.
    pub(crate) fn have_room(&self) -> bool {
        self.0.len() < MAX_TEMPLATES
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spd::rules::{far_end, ternary};
    use crate::{Direction, Family, Mark, Prefix, Selector};

    fn mask_template(serial: u32) -> MaskTemplate {
        let source = Prefix::host(std::net::Ipv6Addr::from_bits(serial.into()).into());
        let selector = Selector { source, ..Selector::any(Family::V6) };
        MaskTemplate::of(&ternary(&selector, Mark::default()), far_end(Direction::Out))
    }

    /// Twice as many come as stay whole rules of their own.
    #[test]
    fn mask_templates_are_limited() {
        let mut templates = MaskTemplates::default();
        let kept: Vec<_> = (0..2 * u32::try_from(MAX_TEMPLATES).unwrap())
            .map_while(|at| templates.share(mask_template(at)))
            .collect();
        assert_eq!((kept.len(), templates.have_room()), (MAX_TEMPLATES, false));
        assert!(
            templates.share(mask_template(7)).is_some_and(|again| Arc::ptr_eq(&again, &kept[7]))
        );
        templates.release(&kept[7]);
        assert!(templates.share(mask_template(1 << 20)).is_none(), "one has it still");
        templates.release(&kept[7]);
        assert!(templates.share(mask_template(1 << 20)).is_some());
        assert_eq!(templates.len(), MAX_TEMPLATES);
    }
}
