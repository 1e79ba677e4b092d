"""The one object that changes a running system, and the one that shows it."""

from lmwarden.control.commands import CommandError as CommandError
from lmwarden.control.commands import SettingsError as SettingsError
from lmwarden.control.control import Control as Control
from lmwarden.control.control import UnknownEngineError as UnknownEngineError
from lmwarden.control.looks import ConversationList as ConversationList
from lmwarden.control.model import ModelHandle as ModelHandle
from lmwarden.control.operations import ConflictError as ConflictError
from lmwarden.control.operations import EngineHandle as EngineHandle
from lmwarden.control.operations import UnknownReplicaError as UnknownReplicaError
from lmwarden.control.snapshots import SLOW_START_S as SLOW_START_S
from lmwarden.control.snapshots import EngineSnapshot as EngineSnapshot
from lmwarden.control.snapshots import ModelSnapshot as ModelSnapshot
from lmwarden.control.snapshots import Operation as Operation
from lmwarden.control.snapshots import OperationKind as OperationKind
from lmwarden.control.snapshots import OperationState as OperationState
from lmwarden.control.snapshots import Snapshot as Snapshot
from lmwarden.control.snapshots import Step as Step
from lmwarden.control.snapshots import UnknownModelError as UnknownModelError
from lmwarden.engine.launch_state import Crash as Crash
from lmwarden.engine.launch_state import LaunchState as LaunchState
from lmwarden.engine.watch import EngineState as EngineState
