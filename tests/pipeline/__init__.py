"""The whole pipeline on a scripted cluster: every fault that the contract has a rule for."""
