"""Types of a session's answers, in one namespace for its hints."""

from snapconv.answers.advice.findings import Advice as Advice
from snapconv.answers.annotation import Annotation as Annotation
from snapconv.answers.check import Budgets as Budgets
from snapconv.answers.check import Check as Check
from snapconv.answers.diff import FileDiff as FileDiff
from snapconv.answers.explanation import Explanation as Explanation
from snapconv.answers.fragmentation import Fragmentation as Fragmentation
from snapconv.answers.growth import Growth as Growth
from snapconv.answers.memory_report import MemoryReport as MemoryReport
from snapconv.answers.oom.failed_allocation import OutOfMemory as OutOfMemory
from snapconv.answers.oom.remedies import Remedies as Remedies
from snapconv.answers.peak import MomentState as MomentState
from snapconv.answers.tree import MemoryTree as MemoryTree
from snapconv.answers.what_if.setting_trials import Request as Request
from snapconv.answers.what_if.setting_trials import SettingTrials as SettingTrials
from snapconv.writers.html.page import View as View
