//! Task management (SAM-5 7, RFC 7143 §11.5): a function is answered only when every I/O that it
//! overtakes has ended, on whatever lane, so that who retries elsewhere is not overtaken by the past.

use std::rc::Rc;

use iscsi::TaskManagementRequest;
use scsi::{Attention, NexusId};

use crate::{
    abort::{Abort, Whose},
    connection::Connection,
    front::{Request, Target},
    open::Mark,
};

/// Does one task management function and answers it. Of the commands of its own session it concerns
/// those `before` it.
pub(crate) async fn run(connection: Rc<Connection>, request: TaskManagementRequest, before: Mark) {
    let response = perform(&connection, &request, before).await;
    let result = connection
        .machine
        .borrow_mut()
        .task_management_response(request.task, response);
    if let Err(error) = result {
        tracing::debug!(%error, "a task management function outlived its connection");
    }
    connection.transmit.notify();
}

async fn perform(connection: &Connection, request: &TaskManagementRequest, before: Mark) -> u8 {
    const ABORT_TASK: u8 = 1;
    const ABORT_TASK_SET: u8 = 2;
    const CLEAR_TASK_SET: u8 = 4;
    const LOGICAL_UNIT_RESET: u8 = 5;
    const TARGET_WARM_RESET: u8 = 6;
    const TARGET_COLD_RESET: u8 = 7;

    let Some(target) = connection.target() else {
        return TaskManagementRequest::REJECTED;
    };
    let unit = scsi::Lun::decode(request.lun.0.to_be_bytes())
        .ok()
        .map(scsi::Lun::number)
        .filter(|number| target.units.contains_key(number));
    match (request.function, unit) {
        (ABORT_TASK, _) => {
            let Some(task) = request.referenced else {
                return TaskManagementRequest::TASK_DOES_NOT_EXIST;
            };
            let aborted = connection.abort_task(task);
            let running = connection.open.running(|_, io_task| io_task == task);
            connection.open.wait_ended(&running).await;
            if !aborted {
                // Its answer was on its way before this function could begin.
                return TaskManagementRequest::TASK_DOES_NOT_EXIST;
            }
        }
        (ABORT_TASK_SET | CLEAR_TASK_SET | LOGICAL_UNIT_RESET, None) => {
            return TaskManagementRequest::LUN_DOES_NOT_EXIST;
        }
        (ABORT_TASK_SET, Some(lun)) => {
            let running = connection.abort_tasks(Some(lun), before);
            connection.open.wait_ended(&running).await;
        }
        (CLEAR_TASK_SET, Some(lun)) => {
            let cleared = Some(Attention::CommandsCleared);
            everywhere(connection, &target, Some(lun), cleared, before).await;
        }
        (LOGICAL_UNIT_RESET, Some(lun)) => {
            reset(connection, &target, Some(lun), before).await;
        }
        (TARGET_WARM_RESET, _) => {
            reset(connection, &target, None, before).await;
        }
        (TARGET_COLD_RESET, _) => {
            reset(connection, &target, None, before).await;
            for lane in &connection.front.lanes {
                let target = target.index;
                // A lane that has ended has no sessions.
                let _ = lane.send(Request::EndTarget { target });
            }
        }
        _ => return TaskManagementRequest::NOT_SUPPORTED,
    }
    TaskManagementRequest::FUNCTION_COMPLETE
}

/// A reset concerns the initiator that asked for it as well (SAM-5 6.3.3).
async fn reset(connection: &Connection, target: &Target, lun: Option<u32>, before: Mark) {
    everywhere(connection, target, lun, None, before).await;
    for (number, unit) in &target.units {
        if lun.is_none_or(|lun| lun == *number) {
            unit.disk.borrow().post(Attention::BusDeviceReset, None);
        }
    }
}

/// Aborts commands in all sessions on all lanes and waits for their I/O. The units are reset or
/// cleared as such, through whatever target their commands came.
async fn everywhere(
    connection: &Connection,
    target: &Target,
    lun: Option<u32>,
    attention: Option<Attention>,
    before: Mark,
) {
    let units = target.units.iter();
    let concerned = units.filter(|(number, _)| lun.is_none_or(|lun| lun == **number));
    let abort = Abort {
        volumes: concerned
            .map(|(_, unit)| unit.volume_name.clone())
            .collect(),
        of: Whose::All,
        spare: None,
        by: NexusId(connection.id),
        before,
        attention,
    };
    connection.front.abort_everywhere(abort).await;
}
