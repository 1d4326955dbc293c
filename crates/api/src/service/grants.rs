//! What somebody may give away: never more than what they have.

use domain::policy::Policy;
use domain::{Scope, TenantContext};

use super::policies::require_narrower;
use crate::json::Checks;
use crate::problem::FieldCode;

/// Notes what a grant has that its giver has not: scopes (told at `at`), and freedom that role or key of the giver take away. `role` is
/// the role of what is granted: the giver's own narrows it as much.
pub(crate) fn within(
    giver: &TenantContext,
    at: &str,
    scopes: &[Scope],
    policy: Option<&Policy>,
    role: Option<&str>,
    checks: &mut Checks,
) {
    let beyond: Vec<_> =
        scopes.iter().filter(|scope| !giver.has(**scope)).map(|scope| scope.as_str()).collect();
    if !beyond.is_empty() {
        let message = format!("you can give only scopes that you have, not {}", beyond.join(", "));
        checks.add(at, FieldCode::Invalid, message);
    }
    let of_role = giver.role().filter(|own| role != Some(own.name.as_str()));
    let of_role = of_role.and_then(|own| own.policy.as_ref());
    let of_key = giver.policies().get(1);
    let nothing = Policy::default();
    for own in [of_role, of_key].into_iter().flatten() {
        if let Err(problem) = require_narrower(own, policy.unwrap_or(&nothing)) {
            checks.absorb(problem);
        }
    }
}
