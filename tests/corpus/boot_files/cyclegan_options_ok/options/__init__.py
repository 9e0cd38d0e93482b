"""options of the training and test scripts"""
