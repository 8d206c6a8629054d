//! Task management (SAM-5 7, RFC 7143 §11.5): a function is answered only when every I/O of the commands it ends is
//! over, on all lanes. The initiator may then safely retry elsewhere: no earlier write can overwrite the retry.

use std::rc::Rc;

use iscsi::TaskManagementRequest;
use unit::Mark;

use crate::{connection::Connection, open::command_id, request::LaneRequest};

/// Performs one task management function and answers it. Of its own session's commands, it affects those `before` it.
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

    let (Some(target), Some(nexus)) = (connection.target(), connection.nexus()) else {
        return TaskManagementRequest::REJECTED;
    };
    let units = &connection.service.units;
    let number = scsi::Lun::decode(request.lun.0.to_be_bytes())
        .ok()
        .map(scsi::Lun::number);
    let unit = number.filter(|number| nexus.unit(*number).is_some());
    match (request.function, unit) {
        (ABORT_TASK, _) => {
            let Some(task) = request.referenced else {
                return TaskManagementRequest::TASK_DOES_NOT_EXIST;
            };
            let aborted = connection.abort_task(task);
            connection.open.charge_look();
            let running = nexus.running(|command| command == command_id(task));
            nexus.wait_ended(&running).await;
            if !aborted {
                // The response was already being sent when this function began.
                return TaskManagementRequest::TASK_DOES_NOT_EXIST;
            }
        }
        (ABORT_TASK_SET | CLEAR_TASK_SET | LOGICAL_UNIT_RESET, None) => {
            // Its commands for a unit that was taken away have ended, but perhaps not their I/O.
            if let Some(number) = number {
                nexus.wait_ended(&nexus.running_on_lost_at(number)).await;
            }
            return TaskManagementRequest::LUN_DOES_NOT_EXIST;
        }
        (ABORT_TASK_SET, Some(lun)) => {
            let running = connection.abort_tasks(nexus, Some(lun), before);
            nexus.wait_ended(&running).await;
        }
        (CLEAR_TASK_SET, Some(lun)) => {
            if !units.clear_task_set(nexus, lun, before).await {
                return TaskManagementRequest::AUTHORIZATION_FAILED;
            }
        }
        (LOGICAL_UNIT_RESET, Some(lun)) => {
            if !units.reset(nexus, lun, before).await {
                return TaskManagementRequest::AUTHORIZATION_FAILED;
            }
        }
        (TARGET_WARM_RESET | TARGET_COLD_RESET, _) => {
            if !units.reset_target(nexus, target.name(), before).await {
                return TaskManagementRequest::AUTHORIZATION_FAILED;
            }
            if request.function == TARGET_COLD_RESET {
                connection.service.lanes.tell(|| LaneRequest::EndTarget {
                    target: target.name().to_owned(),
                });
            }
        }
        _ => return TaskManagementRequest::NOT_SUPPORTED,
    }
    TaskManagementRequest::FUNCTION_COMPLETE
}
